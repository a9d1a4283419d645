// Time in nanoseconds: deadlines are of CLOCK_MONOTONIC; CLOCK_REALTIME is only ever told to people.
#pragma once

#include <cstdint>
#include <ctime>

namespace genie::warden {

using Nanos = std::int64_t;

constexpr Nanos kMillisecond = 1'000'000;
constexpr Nanos kSecond = 1'000'000'000;

inline Nanos clock_ns(clockid_t clock) {
    timespec now{};
    ::clock_gettime(clock, &now);
    return static_cast<Nanos>(now.tv_sec) * kSecond + now.tv_nsec;
}

inline Nanos mono_ns() { return clock_ns(CLOCK_MONOTONIC); }
inline Nanos real_ns() { return clock_ns(CLOCK_REALTIME); }

// For ppoll: how long until `deadline`, never negative.
inline timespec until(Nanos deadline) {
    const Nanos left = deadline - mono_ns();
    if (left <= 0) return {0, 0};
    return {static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
}

inline void sleep_for(Nanos length) {
    timespec left{static_cast<time_t>(length / kSecond), static_cast<long>(length % kSecond)};
    while (::nanosleep(&left, &left) != 0) {
    }
}

}  // namespace genie::warden
