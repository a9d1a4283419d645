// Figures of the verbs transport in one process: `genie_verbs_bench KIND key=value...`, one JSON object a
// run.
//
//     stream   rank 0 sends `count` messages of `bytes` to rank 1; with ranks=N each to the next
//     ping     `count` messages of `bytes` there and back
//     ring     all-reduce of `bytes` among `ranks`, in messages of `chunk`
//     cost     cycles a message of our own code at both ends together, over a device of memory whose are left
//              out
//
// Further keys are settings of the transport, `spin` (ns), or `pin=1`: rank r stays on processor r.
// bench/verbs.py sets them against perftest.
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "verbs_fake.h"
#include "verbs_job.h"

namespace genie::test {
namespace {

using Keys = std::map<std::string, std::string>;

std::uint64_t number(Keys& keys, const char* key, std::uint64_t otherwise) {
    const auto found = keys.find(key);
    if (found == keys.end()) return otherwise;
    const std::uint64_t value = std::strtoull(found->second.c_str(), nullptr, 10);
    keys.erase(found);
    return value;
}

std::uint64_t cycles() {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return 0;
#endif
}

struct Used {
    double cpu_us = 0;
    std::uint64_t cycles = 0;
};

void stay_on(std::uint32_t processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor % std::thread::hardware_concurrency(), &set);
    if (const int error = ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set); error != 0) {
        std::fprintf(stderr, "rank %u cannot stay on one processor: errno %d\n", processor, error);
        std::exit(1);
    }
}

double thread_cpu_us() {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return 1e6 * double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Median span of the iterations after the first, and of all ranks the last that ended each.
double iteration_us(VerbsRanks& ranks) {
    std::vector<std::int64_t> ends;
    for (const auto& rank : ranks) {
        std::size_t i = 0;
        for (std::uint64_t e = 0; e < rank->events().committed(); ++e) {
            const Event& event = rank->events().records()[e];
            if (event.type != EventType::kIteration) continue;
            if (i == ends.size()) ends.push_back(0);
            ends[i] = std::max(ends[i], event.t2_ns);
            ++i;
        }
    }
    std::vector<double> spans;
    for (std::size_t i = 1; i < ends.size(); ++i) spans.push_back(double(ends[i] - ends[i - 1]) / 1e3);
    std::sort(spans.begin(), spans.end());
    return spans.empty() ? 0 : spans[spans.size() / 2];
}

// From the first rank's start to the last one's end, over all iterations. Of a stream only this says how long
// it took: a receiver that gets no processor meanwhile sees the ends of several iterations at once.
double total_us(VerbsRanks& ranks) {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    for (const auto& rank : ranks) {
        for (std::uint64_t e = 0; e < rank->events().committed(); ++e) {
            const Event& event = rank->events().records()[e];
            if (event.type != EventType::kIteration) continue;
            begin = std::min(begin, event.t0_ns);
            end = std::max(end, event.t2_ns);
        }
    }
    return double(end - begin) / 1e3;
}

// Both ranks in turns on this thread; the cheapest iteration, since nothing can make one too cheap.
int cost(const std::vector<ProgramBuilder>& builders, std::uint64_t count) {
    FakeDevice& device = FakeDevice::get();
    device.reset();
    VerbsRanks ranks = connected_ranks(builders, FakeDevice::library());
    device.clock = cycles;
    for (const auto& rank : ranks) rank->begin();
    double least = 0;
    std::uint32_t iteration = 0;
    std::uint64_t before = cycles();
    for (bool on = true; on;) {
        on = false;
        for (const auto& rank : ranks) on |= rank->step();
        if (ranks[1]->iteration() == iteration) continue;
        iteration = ranks[1]->iteration();
        const std::uint64_t now = cycles();
        const double own = double(now - before - std::exchange(device.inside, 0)) / double(count);
        if (iteration > 1 && (least == 0 || own < least)) least = own;
        before = cycles();
    }
    const VerbsStats& stats = ranks[0]->transport().stats();
    std::printf("{\"kind\": \"cost\", \"cycles_a_message\": %.0f, \"messages\": %llu, \"doorbells\": %llu}\n",
                least, static_cast<unsigned long long>(stats.sends),
                static_cast<unsigned long long>(stats.doorbells));
    return 0;
}

int bench(const std::string& kind, Keys keys) {
    const auto bytes = number(keys, "bytes", 65536);
    const auto count = static_cast<std::uint32_t>(number(keys, "count", 1000));
    const auto ranks = static_cast<std::uint32_t>(number(keys, "ranks", kind == "ring" ? 4 : 2));
    const auto chunk = static_cast<std::uint32_t>(number(keys, "chunk", bytes));
    const auto iterations = static_cast<std::uint32_t>(number(keys, "iterations", 4));
    const auto spin = number(keys, "spin", 0);
    const bool pin = number(keys, "pin", 0) != 0;
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        ProgramBuilder& builder = builders.emplace_back(verbs_builder(r, ranks, keys, false));
        builder.header.iterations = iterations;
        builder.header.flags = 0;
        builder.header.spin_ns = spin;
        std::vector<StepSpec> steps;
        if (kind == "ring") {
            steps = ring_all_reduce(r, ranks);
        } else if (kind == "ping") {
            for (std::uint32_t i = 0; i < count; ++i) {
                StepSpec there{StepKind::kSend, 0, 1 - r, SizeKind::kBlock, 0, 1, {}, 0};
                StepSpec back{StepKind::kRecv, 0, 1 - r, SizeKind::kBlock, 0, 1, {}, 0};
                const auto at = static_cast<std::uint32_t>(steps.size());
                if (r == 1) {
                    there.needs.push_back({at, NeedMode::kWhole});
                    steps.push_back(back);
                    steps.push_back(there);
                } else {
                    if (i > 0) there.needs.push_back({at - 1, NeedMode::kWhole});
                    steps.push_back(there);
                    steps.push_back(back);
                }
            }
        } else {
            const bool pair = ranks == 2;
            const std::uint32_t next = (r + 1) % ranks;
            const std::uint32_t before = (r + ranks - 1) % ranks;
            if (!pair || r == 0) steps.push_back({StepKind::kSend, 0, next, SizeKind::kBlock, 0, 1, {}, 0});
            if (!pair || r == 1) steps.push_back({StepKind::kRecv, 0, before, SizeKind::kBlock, 0, 1, {}, 0});
        }
        builder.call(1, builder.make_template(steps),
                     kind == "stream" || kind == "cost" ? bytes * count : bytes, chunk);
    }
    if (kind == "cost") return cost(builders, count);
    VerbsRanks all = connected_ranks(builders, verbs_library());
    std::vector<FailureReport> failures(ranks);
    std::vector<Used> used(ranks);
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < ranks; ++r) {
        threads.emplace_back([&, r] {
            if (pin) stay_on(r);
            const double cpu = thread_cpu_us();
            const std::uint64_t before = cycles();
            failures[r] = all[r]->run();
            used[r] = {thread_cpu_us() - cpu, cycles() - before};
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const FailureReport& failure : failures) {
        if (failure.code == Code::kNone) continue;
        std::fprintf(stderr, "%s\n", failure.text.c_str());
        return 1;
    }
    const VerbsStats& stats = all[0]->transport().stats();
    const std::uint64_t messages = all[0]->events().header().messages_sent.load();
    std::printf(
        "{\"kind\": \"%s\", \"bytes\": %llu, \"messages\": %llu, \"iteration_us\": %.2f, \"total_us\": %.1f, "
        "\"cpu_us\": %.1f, "
        "\"cpu_peer_us\": %.1f, \"cycles\": %llu, \"sends\": %llu, \"credits\": %llu, \"doorbells\": %llu, "
        "\"polls\": %llu, \"empty_polls\": %llu, \"completions\": %llu, \"sleeps\": %llu}\n",
        kind.c_str(), static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(messages),
        iteration_us(all), total_us(all), used[0].cpu_us, used[1].cpu_us,
        static_cast<unsigned long long>(used[0].cycles), static_cast<unsigned long long>(stats.sends),
        static_cast<unsigned long long>(stats.credits), static_cast<unsigned long long>(stats.doorbells),
        static_cast<unsigned long long>(stats.polls), static_cast<unsigned long long>(stats.empty_polls),
        static_cast<unsigned long long>(stats.completions), static_cast<unsigned long long>(stats.sleeps));
    return 0;
}

}  // namespace
}  // namespace genie::test

int main(int argc, char** argv) {
    genie::test::Keys keys;
    for (int i = 2; i < argc; ++i) {
        const std::string word = argv[i];
        const std::size_t at = word.find('=');
        if (at == std::string::npos) {
            std::fprintf(stderr, "expected key=value, found %s\n", argv[i]);
            return 2;
        }
        keys[word.substr(0, at)] = word.substr(at + 1);
    }
    try {
        return genie::test::bench(argc > 1 ? argv[1] : "", keys);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie_verbs_bench: %s\n", error.what());
        return 1;
    }
}
