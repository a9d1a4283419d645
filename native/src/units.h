// Units that must not mix: instants and spans in nanoseconds, sizes in bytes. Plain integers cross only the
// wire and the event file.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>

namespace genie {

// The compiler's, for products that do not fit 64 bits.
__extension__ using Wide = unsigned __int128;

// An instant of a monotonic clock, or the span between two, in nanoseconds.
struct Nanos {
    std::int64_t value = 0;

    friend constexpr auto operator<=>(Nanos, Nanos) = default;
    friend constexpr Nanos operator+(Nanos a, Nanos b) { return {a.value + b.value}; }
    friend constexpr Nanos operator-(Nanos a, Nanos b) { return {a.value - b.value}; }
    static constexpr Nanos never() { return {std::numeric_limits<std::int64_t>::max()}; }
};

constexpr Nanos operator""_ns(unsigned long long value) { return {static_cast<std::int64_t>(value)}; }
constexpr Nanos operator""_us(unsigned long long value) { return {static_cast<std::int64_t>(value) * 1'000}; }
constexpr Nanos operator""_ms(unsigned long long value) {
    return {static_cast<std::int64_t>(value) * 1'000'000};
}

// `a + b`, or never() where that would overflow.
constexpr Nanos saturating_add(Nanos a, Nanos b) {
    Nanos sum{0};
    return __builtin_add_overflow(a.value, b.value, &sum.value) ? Nanos::never() : sum;
}

// `duration` times `ppm` millionths; saturates at a value that still can be added to a clock.
constexpr Nanos scaled(Nanos duration, std::uint64_t ppm) {
    const auto product = static_cast<Wide>(duration.value) * ppm / 1'000'000;
    constexpr auto kMost = static_cast<Wide>(std::numeric_limits<std::int64_t>::max());
    return product > kMost ? Nanos::never() : Nanos{static_cast<std::int64_t>(product)};
}

}  // namespace genie
