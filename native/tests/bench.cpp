// Figures of the engine alone, over loopback: `genie_bench [ops|timers|ring|stream]...`, all without
// arguments.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "local_job.h"

namespace genie::test {
namespace {

struct Recorded {
    EventHeader* header;
    std::vector<Event> events;
};

std::vector<Event> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t committed = 0;
    file.seekg(64);
    file.read(reinterpret_cast<char*>(&committed), 8);
    std::vector<Event> events(committed);
    file.seekg(4096);
    file.read(reinterpret_cast<char*>(events.data()),
              static_cast<std::streamsize>(committed * sizeof(Event)));
    return events;
}

void must_be_ok(const std::vector<LocalResult>& results) {
    for (const LocalResult& result : results) {
        if (result.ending != Ending::kOk)
            std::printf("FAILED rank %u: %s\n", result.rank, result.failure.text.c_str());
    }
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
}

std::vector<double> iteration_times(const std::vector<std::string>& paths, std::uint32_t skip) {
    std::vector<std::int64_t> ends;
    for (const std::string& path : paths) {
        std::size_t i = 0;
        for (const Event& event : read(path)) {
            if (event.type != EventType::kIteration) continue;
            if (i == ends.size()) ends.push_back(0);
            ends[i] = std::max(ends[i], event.t2_ns);
            ++i;
        }
    }
    std::vector<double> times;
    for (std::size_t i = std::max(1U, skip); i < ends.size(); ++i)
        times.push_back(double(ends[i] - ends[i - 1]));
    return times;
}

void ops() {
    constexpr std::uint32_t kOps = 1'000'000;
    ProgramBuilder builder(0, 1);
    const std::uint32_t lane = builder.lane(false);
    for (std::uint32_t i = 0; i < kOps; ++i) {
        builder.compute(0, i == 0 ? std::vector<std::uint32_t>{} : std::vector<std::uint32_t>{i - 1}, lane);
    }
    builder.header.iterations = 3;
    builder.header.event_capacity = kOps * 3 + 3;
    const std::string path = "/tmp/genie-bench.evt";
    must_be_ok(run_job({builder}, {path}));
    for (const Event& event : read(path)) {
        if (event.type == EventType::kIteration) {
            std::printf("chain of %u operators, recorded: %.1f million a second\n", kOps,
                        kOps * 1e3 / double(event.t2_ns - event.t0_ns));
        }
    }
    std::remove(path.c_str());
}

void timers(std::uint32_t ranks) {
    std::vector<ProgramBuilder> builders;
    std::vector<std::string> paths;
    const std::int64_t durations[] = {50'000, 100'000, 300'000, 1'000'000, 3'000'000, 10'000'000};
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, ranks);
        builder.header.spin_ns = 100'000;
        builder.header.iterations = 50;
        std::vector<std::uint32_t> last;
        for (const std::int64_t duration : durations) last = {builder.compute(duration, last)};
        paths.push_back("/tmp/genie-bench-" + std::to_string(r) + ".evt");
    }
    must_be_ok(run_job(builders, paths));
    std::vector<double> errors;
    for (const std::string& path : paths) {
        for (const Event& event : read(path)) {
            if (event.type != EventType::kOperator) continue;
            errors.push_back(double(event.t2_ns - event.t1_ns - durations[event.op]) / 1e3);
        }
        std::remove(path.c_str());
    }
    std::sort(errors.begin(), errors.end());
    double sum = 0;
    for (const double error : errors) sum += error;
    std::printf("timers, %u ranks, 50 us to 10 ms: mean error %.2f us, p99 %.2f us, most %.2f us\n", ranks,
                sum / double(errors.size()), errors[errors.size() * 99 / 100], errors.back());
}

void ring(std::uint32_t ranks, std::uint64_t bytes, std::uint32_t chunk, const char* congestion,
          std::uint64_t spin) {
    std::vector<ProgramBuilder> builders;
    std::vector<std::string> paths;
    const std::uint32_t iterations = bytes >= 1 << 20 ? 60 : 600;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, ranks);
        builder.header.iterations = iterations;
        builder.header.spin_ns = spin;
        builder.header.event_capacity = 1 << 20;
        std::strncpy(builder.header.congestion_control, congestion, 15);
        builder.call(1, builder.make_template(ring_all_reduce(r, ranks)), bytes, chunk);
        paths.push_back("/tmp/genie-bench-" + std::to_string(r) + ".evt");
    }
    must_be_ok(run_job(builders, paths));
    const double time = median(iteration_times(paths, iterations / 10));
    std::printf(
        "ring all-reduce, %u ranks, %8llu bytes, chunk %u, %s, spin %llu us: %.3f ms, busbw %.3f GB/s\n",
        ranks, static_cast<unsigned long long>(bytes), chunk, congestion,
        static_cast<unsigned long long>(spin / 1000), time / 1e6,
        2.0 * (ranks - 1) / ranks * double(bytes) / time);
    for (const std::string& path : paths) std::remove(path.c_str());
}

void stream(const char* congestion) {
    std::vector<ProgramBuilder> builders;
    std::vector<std::string> paths;
    for (std::uint32_t r = 0; r < 2; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, 2);
        builder.header.iterations = 20;
        std::strncpy(builder.header.congestion_control, congestion, 15);
        builder.call(
            1,
            builder.make_template(
                {{r == 0 ? StepKind::kSend : StepKind::kRecv, 0, 1 - r, SizeKind::kBlock, 0, 1, {}, 0}}),
            512 << 20, 512 << 10);
        paths.push_back("/tmp/genie-bench-" + std::to_string(r) + ".evt");
    }
    must_be_ok(run_job(builders, paths));
    const double time = median(iteration_times(paths, 2));
    std::printf("one stream, %s: %.2f GB/s\n", congestion, double(512 << 20) / time);
    for (const std::string& path : paths) std::remove(path.c_str());
}

}  // namespace
}  // namespace genie::test

int main(int argc, char** argv) {
    using namespace genie::test;
    const auto wanted = [&](std::string_view name) {
        return argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char* word) { return name == word; });
    };
    if (wanted("ops")) ops();
    if (wanted("timers")) {
        timers(1);
        timers(2);
        timers(8);
    }
    if (wanted("ring")) {
        for (const std::uint64_t bytes : {1ULL << 10, 64ULL << 10, 1ULL << 20, 16ULL << 20}) {
            for (const std::uint64_t spin : {0ULL, 100'000ULL}) ring(4, bytes, 256 << 10, "cubic", spin);
        }
    }
    if (wanted("stream")) stream("cubic");
}
