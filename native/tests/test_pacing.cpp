// When packets of a load are due.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>

#include "pacing.h"

namespace genie::test {
namespace {

TEST_CASE("packets are due one interval apart, the first at once") {
    const Pacing pacing{8'000'000, 1000, 0_ns, 0_ns};  // one a millisecond
    CHECK(pacing.due(0_ns) == 1);
    CHECK(pacing.due(999'999_ns) == 1);
    CHECK(pacing.due(1_ms) == 2);
    CHECK(pacing.when(0) == 0_ns);
    CHECK(pacing.when(7) == 7_ms);
    CHECK(pacing.packets_in(5_ms) == 5);
}

TEST_CASE("bursts: what is due at a window's end opens the next window") {
    const Pacing pacing{8'000'000, 1000, 3_ms, 7_ms};
    CHECK(pacing.due(2_ms) == 3);
    CHECK(pacing.due(3_ms) == 3);
    CHECK(pacing.due(9'999'999_ns) == 3);
    CHECK(pacing.due(10_ms) == 4);
    CHECK(pacing.when(3) == 10_ms);
    CHECK(pacing.when(8) == 22_ms);
}

TEST_CASE("due and when agree, for any rate, size and burst") {
    std::mt19937_64 random(7);
    const auto between = [&](std::uint64_t least, std::uint64_t most) {
        return std::uniform_int_distribution<std::uint64_t>(least, most)(random);
    };
    for (int round = 0; round < 2000; ++round) {
        Pacing pacing{between(1, 200'000'000'000), static_cast<std::uint32_t>(between(44, 65'535)), 0_ns,
                      0_ns};
        if (round % 2 == 0) {
            pacing.on = {static_cast<std::int64_t>(between(1'000, 1'000'000'000))};
            pacing.off = {static_cast<std::int64_t>(between(1, 1'000'000'000))};
        }
        const std::uint64_t number = between(0, 1'000'000);
        const Nanos when = pacing.when(number);
        CAPTURE(pacing.rate_bps);
        CAPTURE(pacing.packet_bytes);
        CAPTURE(pacing.on.value);
        CAPTURE(pacing.off.value);
        CAPTURE(number);
        REQUIRE(pacing.due(when) >= number + 1);
        if (when.value > 0) REQUIRE(pacing.due(when - 1_ns) <= number);
    }
}

TEST_CASE("what lies beyond the clock is never due") {
    CHECK(Pacing{1, 65'535, 0_ns, 0_ns}.when(std::uint64_t{1} << 40) == Nanos::never());
    CHECK(Pacing{1, 65'535, 1_ns, {std::int64_t{1} << 60}}.when(100'000) == Nanos::never());
}

}  // namespace
}  // namespace genie::test
