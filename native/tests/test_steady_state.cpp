// In steady state a rank allocates nothing: counted by replacing operator new for this whole binary.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "driver.h"
#include "local_job.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    void* memory = std::malloc(size == 0 ? 1 : size);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace genie::test {
namespace {

std::uint64_t allocations_of(std::uint32_t iterations, std::uint32_t window) {
    std::vector<ProgramBuilder> builders;
    for (std::uint32_t r = 0; r < 3; ++r) {
        ProgramBuilder& builder = builders.emplace_back(r, 3);
        builder.header.iterations = iterations;
        builder.header.window_messages = window;
        const std::uint32_t lane = builder.lane(true);
        const std::uint32_t other = builder.lane(false);
        const std::uint32_t ring = builder.make_template(ring_all_reduce(r, 3));
        const std::uint32_t first = builder.call(1, ring, 300'000, 32 << 10, {}, lane);
        const std::uint32_t second = builder.call(2, ring, 30'000, 32 << 10, {}, lane);
        builder.compute(1000, {first}, other);
        builder.compute(0, {first, second}, other);
    }
    const std::uint64_t before = allocations.load();
    for (const LocalResult& result : run_job(builders)) CHECK(result.failure.text == "");
    return allocations.load() - before;
}

TEST_CASE("a hundred times the iterations make no more allocations") {
    for (const std::uint32_t window : {0U, 4U}) {
        const std::uint64_t few = allocations_of(3, window);
        const std::uint64_t many = allocations_of(300, window);
        // Pools may grow by a few instances where a peer runs ahead, connecting may retry: not with
        // iterations.
        CAPTURE(few);
        CAPTURE(many);
        CHECK(many < few + 60);
    }
}

}  // namespace
}  // namespace genie::test
