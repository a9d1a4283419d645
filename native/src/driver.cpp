#include "driver.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <ctime>

#include "clock.h"

namespace genie {
namespace {

int cores() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

}  // namespace

std::atomic<int> SpinGate::ranks_{0};
std::atomic<int> SpinGate::spinning_{0};

bool SpinGate::enter() {
    static const int kCores = cores();
    const int limit = ranks_.load(std::memory_order_relaxed) <= kCores ? kCores : std::max(1, kCores - 1);
    if (spinning_.fetch_add(1, std::memory_order_acquire) < limit) return true;
    spinning_.fetch_sub(1, std::memory_order_release);
    return false;
}

void sleep_until(Nanos when, int stop_fd, bool may_spin) {
    const Nanos early = may_spin ? when - kSleepGuard : when;
    for (Nanos now = monotonic_now(); now < early; now = monotonic_now()) {
        const std::int64_t left = (early - now).value;
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        pollfd stop{stop_fd, POLLIN, 0};
        if (::ppoll(&stop, 1, &timeout, nullptr) > 0) return;
    }
    while (monotonic_now() < when) relax();
}

}  // namespace genie
