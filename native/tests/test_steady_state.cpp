// In steady state a rank allocates nothing: counted by replacing operator new for this whole binary.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <new>
#include <string>

#include "driver.h"
#include "local_job.h"

namespace {
constexpr std::size_t kRemembered = 1 << 16;
std::atomic<std::uint64_t> allocations{0};
std::atomic<std::int64_t> allocated_at[kRemembered];
}  // namespace

void* operator new(std::size_t size) {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const std::uint64_t number = allocations.fetch_add(1, std::memory_order_relaxed);
    allocated_at[number % kRemembered].store(now.tv_sec * 1'000'000'000 + now.tv_nsec,
                                             std::memory_order_relaxed);
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace genie::test {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr std::uint32_t kIterations = 400;
constexpr std::uint32_t kWarmUp = 100;

// When iteration `number` ended, by the event file of a rank.
std::int64_t end_of(const std::string& path, std::uint32_t number) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(sizeof(EventHeader));
    Event event;
    while (file.read(reinterpret_cast<char*>(&event), sizeof event)) {
        if (event.type == EventType::kIteration && event.iteration == number) return event.t2_ns;
    }
    FAIL("no end of iteration ", number, " in ", path);
    return 0;
}

struct Window {
    std::uint64_t before = 0;
    std::uint64_t within = 0;
    std::uint64_t after = 0;
};

// Allocations of a whole job, by when they were made: until every rank had done its warm-up, and from then
// until the first rank had done its last iteration.
Window allocations_of(std::uint32_t window_messages, bool record_messages, bool slowed) {
    char folder[] = "/tmp/genie-steady-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    std::vector<std::string> paths;
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < kRanks; ++r) {
        paths.push_back(std::string(folder) + "/" + std::to_string(r));
        ProgramBuilder& builder = builders.emplace_back(r, kRanks);
        builder.header.iterations = kIterations;
        builder.header.window_messages = window_messages;
        builder.header.flags = record_messages ? kFlagRecordMessages : 0;
        const std::uint32_t lane = builder.lane(true);
        const std::uint32_t other = builder.lane(false);
        const std::uint32_t ring = builder.make_template(ring_all_reduce(r, kRanks));
        const std::uint32_t first = builder.call(1, ring, 300'000, 32 << 10, {}, lane);
        const std::uint32_t second = builder.call(2, ring, 30'000, 32 << 10, {}, lane);
        builder.compute(1000, {first}, other);
        builder.compute(0, {first, second}, other);
    }
    const std::string pace_path = std::string(folder) + "/pace";
    PaceFile pace = PaceFile::open_or_make(pace_path);
    pace.set(1500);
    LocalOptions options;
    if (slowed) options.pace = &pace;
    const std::uint64_t first = allocations.load();
    for (const LocalResult& result : run_job(builders, paths, options)) CHECK(result.failure.text == "");
    const std::uint64_t last = allocations.load();
    REQUIRE(last - first < kRemembered);
    std::int64_t warm = 0;
    std::int64_t end = std::numeric_limits<std::int64_t>::max();
    for (const std::string& path : paths) {
        warm = std::max(warm, end_of(path, kWarmUp - 1));
        end = std::min(end, end_of(path, kIterations - 1));
    }
    REQUIRE(warm < end);
    Window found;
    for (std::uint64_t i = first; i < last; ++i) {
        const std::int64_t at = allocated_at[i % kRemembered].load();
        ++(at <= warm ? found.before : at < end ? found.within : found.after);
    }
    CHECK(pace.page().stretched_ops == (slowed ? kRanks * kIterations : 0));
    for (const std::string& path : paths) ::unlink(path.c_str());
    ::unlink(pace_path.c_str());
    ::rmdir(folder);
    return found;
}

TEST_CASE("after its warm-up a rank allocates nothing at all, slowed or not") {
    for (const std::uint32_t window_messages : {0U, 4U}) {
        for (const bool record_messages : {false, true}) {
            const Window found = allocations_of(window_messages, record_messages, record_messages);
            CAPTURE(window_messages);
            CAPTURE(record_messages);
            CAPTURE(found.before);
            CHECK(found.before > 0);  // or it was not counted at all
            CHECK(found.within == 0);
        }
    }
}

}  // namespace

std::uint64_t allocations_made() { return allocations.load(); }

}  // namespace genie::test
