// genie._native: the engine for Python. Blobs in, plain values out; no Python object is near a running rank.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "control.h"
#include "local.h"
#include "program.h"
#include "sim.h"

namespace nb = nanobind;

namespace genie {
namespace {

Program parse(const nb::bytes& blob) {
    return parse_program({reinterpret_cast<const std::byte*>(blob.c_str()), blob.size()});
}

std::vector<Program> parse_all(const std::vector<nb::bytes>& blobs) {
    std::vector<Program> programs;
    programs.reserve(blobs.size());
    for (const nb::bytes& blob : blobs) programs.push_back(parse(blob));
    return programs;
}

nb::dict check_program(const nb::bytes& blob) {
    const Program program = parse(blob);
    nb::dict summary;
    summary["rank"] = program.header.rank;
    summary["world"] = program.header.world;
    summary["iterations"] = program.header.iterations;
    summary["ops"] = program.ops.size();
    summary["calls"] = program.calls.size();
    summary["templates"] = program.templates.size();
    summary["steps"] = program.steps.size();
    summary["connections"] = program.connections.size();
    summary["event_capacity"] = program.header.event_capacity;
    return summary;
}

nb::dict failure_fields(const FailureReport& failure) {
    const auto or_none = [](std::uint32_t value) -> nb::object {
        return value == kNone ? nb::none() : nb::object(nb::int_(value));
    };
    nb::dict fields;
    fields["code"] = static_cast<std::uint32_t>(failure.code);
    fields["op"] = or_none(failure.op);
    fields["iteration"] = failure.iteration;
    fields["peer"] = or_none(failure.peer);
    fields["call_id"] = or_none(failure.call_id);
    fields["waited_ns"] = failure.waited_ns;
    fields["text"] = failure.text;
    return fields;
}

nb::list run_local_(const std::vector<nb::bytes>& blobs, const std::vector<std::string>& event_paths,
                    const nb::bytes& token_bytes) {
    Token token;
    if (token_bytes.size() != token.size()) throw nb::value_error("token must be 32 bytes");
    if (event_paths.size() != blobs.size()) throw nb::value_error("expected an event path for each program");
    std::copy_n(reinterpret_cast<const std::uint8_t*>(token_bytes.c_str()), token.size(), token.begin());
    std::vector<Program> programs = parse_all(blobs);
    std::vector<LocalResult> results;
    {
        const nb::gil_scoped_release released;
        results = run_local(std::move(programs), event_paths, token);
    }
    nb::list out;
    for (const LocalResult& result : results) {
        nb::dict fields = failure_fields(result.failure);
        fields["rank"] = result.rank;
        fields["status"] = static_cast<std::uint32_t>(result.ending);
        out.append(fields);
    }
    return out;
}

nb::dict simulate_(const std::vector<nb::bytes>& blobs, std::int64_t latency_ns,
                   const std::vector<std::uint64_t>& rank_rate_bps, std::int64_t frame_overhead_ns) {
    if (latency_ns < 0 || frame_overhead_ns < 0)
        throw nb::value_error("latency and overhead must be non-negative");
    const std::vector<Program> programs = parse_all(blobs);
    std::vector<SimRank> results;
    {
        const nb::gil_scoped_release released;
        results = simulate(programs, {{latency_ns}, rank_rate_bps, {frame_overhead_ns}});
    }
    nb::list ends;
    nb::list sent;
    nb::list failures;
    for (const SimRank& rank : results) {
        nb::list times;
        for (const std::int64_t time : rank.iteration_end_ns) times.append(time);
        ends.append(times);
        sent.append(rank.bytes_sent);
        if (rank.failure.code == Code::kNone) {
            failures.append(nb::none());
        } else {
            failures.append(failure_fields(rank.failure));
        }
    }
    nb::dict out;
    out["iteration_end_ns"] = ends;
    out["bytes_sent"] = sent;
    out["failures"] = failures;
    return out;
}

}  // namespace
}  // namespace genie

NB_MODULE(_native, m) {
    m.doc() = "The native engine: checks programs, runs them in this process, simulates them.";
    nb::register_exception_translator([](const std::exception_ptr& raised, void*) {
        try {
            std::rethrow_exception(raised);
        } catch (const genie::BadProgram& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        } catch (const genie::Failure& failure) {
            PyErr_SetString(PyExc_OSError, failure.what());
        }
    });
    m.attr("protocol_version") = genie::kControlVersion;
    m.attr("program_version") = genie::kProgramVersion;
    m.def("check_program", &genie::check_program, nb::arg("blob"));
    m.def("run_local", &genie::run_local_, nb::arg("programs"), nb::arg("event_paths"), nb::arg("token"));
    m.def("simulate", &genie::simulate_, nb::arg("programs"), nb::kw_only(), nb::arg("latency_ns"),
          nb::arg("rank_rate_bps"), nb::arg("frame_overhead_ns") = 0);
}
