#include "driver.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <ctime>

namespace genie {
namespace {

constexpr Nanos kGuard = 150_us;     // a sleep may wake this late; the rest of the way is spun
constexpr Nanos kLookAgain = 3_us;   // closer to a deadline than this no system call is made
constexpr Nanos kPreempted = 50_us;  // between two looks at the clock
constexpr int kLongestBackoff = 256;

int cores() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return std::max(1, CPU_COUNT(&set));
}

// Tells the core that this is a spin.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Waiting {
  public:
    Waiting(TcpTransport& transport, Nanos spin) : transport_(transport), spin_(spin) {}

    // Returns when bytes can be moved or the wait's deadline has come.
    void wait(const Wait& wait) {
        Nanos now = monotonic_now();
        const Nanos enough = saturating_add(now, spin_);
        if (spin_.value > 0 &&
            spin_until(now, std::min(enough, wait.deadline), wait.timer && wait.deadline <= enough)) {
            return;
        }
        now = monotonic_now();
        const bool precise = wait.timer && spin_.value > 0;
        const Nanos until = precise ? wait.deadline - kGuard : wait.deadline;
        if (until > now) {
            transport_.gather(now, until);
            if (transport_.gathered()) return;
            now = monotonic_now();
        }
        if (now >= wait.deadline) return;
        if (!precise) return;  // woke early: look again
        if (!spin_until(now, wait.deadline, true)) transport_.gather(now = monotonic_now(), wait.deadline);
    }

  private:
    // How many spins to leave out, and how many the next time.
    struct Reluctance {
        int skip = 0;
        int backoff = 0;
    };

    // True if bytes can be moved or `until` has come; false at once if this thread had better sleep, or if it
    // spun for bytes in vain.
    bool spin_until(Nanos now, Nanos until, bool timer) {
        Reluctance& reluctance = timer ? timers_ : bytes_;
        if (reluctance.skip > 0) {
            --reluctance.skip;
            return false;
        }
        if (!SpinGate::enter()) return false;
        bool preempted = false;
        // One that spins towards an instant goes on: it is nearly there, and a sleep would wake later still.
        while (now < until && (timer || !preempted)) {
            if (until - now > kLookAgain) {
                transport_.gather(now, now);
                if (transport_.gathered()) break;
            } else {
                relax();
            }
            const Nanos later = monotonic_now();
            preempted |= later - now > kPreempted;
            now = later;
        }
        SpinGate::leave();
        // A spin for bytes that brought none, or one that another thread cut short, makes the next ones
        // rarer; for an instant only if it happens again and again, as it does with too few cores.
        const bool in_vain = preempted || (!transport_.gathered() && !timer);
        int& backoff = reluctance.backoff;
        backoff = in_vain ? std::min(kLongestBackoff, backoff * 2 + 1) : backoff / 2;
        if (in_vain) reluctance.skip = timer ? backoff / 2 : backoff;
        return transport_.gathered() || (timer && now >= until);
    }

    TcpTransport& transport_;
    const Nanos spin_;
    Reluctance bytes_;
    Reluctance timers_;
};

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

void drive(TcpRank& rank, TcpTransport& transport, Nanos spin,
           const std::function<const std::string*()>& stopped) {
    Waiting waiting(transport, spin);
    SpinGate::join();
    for (;;) {
        const Wait wait = rank.advance(monotonic_now());
        if (!rank.running()) break;
        if (const std::string* reason = stopped(); reason != nullptr) {
            rank.abort(*reason);
            break;
        }
        if (wait.more) {
            const Nanos now = monotonic_now();
            transport.gather(now, now);
        } else {
            waiting.wait(wait);
        }
    }
    SpinGate::part();
}

void sleep_until(Nanos when, int stop_fd, bool may_spin) {
    const Nanos early = may_spin ? when - kGuard : when;
    for (Nanos now = monotonic_now(); now < early; now = monotonic_now()) {
        const std::int64_t left = (early - now).value;
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        pollfd stop{stop_fd, POLLIN, 0};
        if (::ppoll(&stop, 1, &timeout, nullptr) > 0) return;
    }
    while (monotonic_now() < when) relax();
}

}  // namespace genie
