// Runs a rank on the calling thread: when to look for bytes, when to sleep, when to spin. Of its transport it
// wants
//
//     void gather(now, until)     wait until bytes can be moved, `until` has come or the rank shall stop;
//     deliver none bool gathered()             whether the last call found any
//
// A sleep wakes some 40 us late, a spin at once. Spinning pays only while a core is free for it, so a process
// lets no more threads spin than it may (SpinGate), and a thread that was preempted while it spun stays away
// from it for a while: other processes are not in our count.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>

#include "clock.h"
#include "transport.h"
#include "units.h"

namespace genie {

// How many threads of this process spin at this moment. The limit is cores - 1, or cores while the process
// runs no more ranks than there are cores.
class SpinGate {
  public:
    static void join() { ranks_.fetch_add(1, std::memory_order_relaxed); }
    static void part() { ranks_.fetch_sub(1, std::memory_order_relaxed); }
    static bool enter();
    static void leave() { spinning_.fetch_sub(1, std::memory_order_release); }

  private:
    static std::atomic<int> ranks_;
    static std::atomic<int> spinning_;
};

// Sleeps until `when`, to the microsecond where this thread may spin; earlier if `stop_fd` is readable.
void sleep_until(Nanos when, int stop_fd, bool may_spin);

constexpr Nanos kSleepGuard = 150_us;  // a sleep may wake this late; the rest of the way is spun

// Tells the core that this is a spin.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

template <class Transport>
class Waiting {
  public:
    Waiting(Transport& transport, Nanos spin) : transport_(transport), spin_(spin) {}

    // Returns when bytes can be moved or the wait's deadline has come. `now` is a while ago: as long as the
    // rank's last step took, which is good enough for a limit and not for a timer or a spin.
    void wait(const Wait& wait, Nanos now) {
        if (spin_.value > 0 || wait.timer) now = monotonic_now();
        const Nanos enough = saturating_add(now, spin_);
        if (spin_.value > 0 &&
            spin_until(now, std::min(enough, wait.deadline), wait.timer && wait.deadline <= enough)) {
            return;
        }
        if (spin_.value > 0) now = monotonic_now();
        const bool precise = wait.timer && spin_.value > 0;
        const Nanos until = precise ? wait.deadline - kSleepGuard : wait.deadline;
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
    static constexpr Nanos kLookAgain = 3_us;   // closer to a deadline than this no system call is made
    static constexpr Nanos kPreempted = 50_us;  // between two looks at the clock
    static constexpr int kLongestBackoff = 256;

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

    Transport& transport_;
    const Nanos spin_;
    Reluctance bytes_;
    Reluctance timers_;
};

// Runs `rank`, which has begun, to its end. `stopped` returns a reason once the rank shall stop.
template <class Rank, class Transport>
void drive(Rank& rank, Transport& transport, Nanos spin, const std::function<const std::string*()>& stopped) {
    Waiting<Transport> waiting(transport, spin);
    SpinGate::join();
    for (;;) {
        const Nanos now = monotonic_now();
        const Wait wait = rank.advance(now);
        if (!rank.running()) break;
        if (const std::string* reason = stopped(); reason != nullptr) {
            rank.abort(*reason);
            break;
        }
        if (wait.more) {
            const Nanos later = monotonic_now();
            transport.gather(later, later);
        } else {
            waiting.wait(wait, now);
        }
    }
    SpinGate::part();
}

}  // namespace genie
