// Runs a rank over TCP on the calling thread: when to look for bytes, when to sleep, when to spin.
//
// A sleep wakes some 40 us late, a spin at once. Spinning pays only while a core is free for it, so a process
// lets no more threads spin than it may (SpinGate), and a thread that was preempted while it spun stays away
// from it for a while: other processes are not in our count.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "rank.h"
#include "tcp.h"

namespace genie {

struct MonotonicClock {
    Nanos now() const { return monotonic_now(); }
};

using TcpRank = Rank<MonotonicClock, TcpTransport>;

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

// Runs `rank`, which has begun, to its end. `stopped` returns a reason once the rank shall stop.
void drive(TcpRank& rank, TcpTransport& transport, Nanos spin,
           const std::function<const std::string*()>& stopped);

// Sleeps until `when`, to the microsecond where this thread may spin; earlier if `stop_fd` is readable.
void sleep_until(Nanos when, int stop_fd, bool may_spin);

}  // namespace genie
