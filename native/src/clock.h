// The clock that ranks live by: the kernel's monotonic one, which all threads of a host share.
#pragma once

#include <ctime>

#include "units.h"

namespace genie {

// Inline, for it is read for every message.
inline Nanos monotonic_now() {
    timespec now;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return {now.tv_sec * 1'000'000'000 + now.tv_nsec};
}

struct MonotonicClock {
    Nanos now() const { return monotonic_now(); }
};

}  // namespace genie
