// Sends the packets of one load, paced by CLOCK_MONOTONIC, until its time is up or SIGTERM.
//
// Open loop: nothing that comes back, or fails to go out, slows or stops it; every packet that was not sent
// is counted by reason. Between packets it sleeps.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <ctime>
#include <vector>

#include "descriptor.h"
#include "pacing.h"
#include "state.h"

namespace genie {

inline Nanos monotonic_now() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return {now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec};
}

constexpr std::uint32_t kHeadersBytes = 28;  // IPv4 and UDP
constexpr std::uint32_t kLeastPacketBytes = kHeadersBytes + 16;
constexpr std::uint32_t kMostPacketBytes = 65'535;

class Sender {
  public:
    // Opens a socket for each destination. Throws Failure where there is no route, the source port is taken,
    // or a packet does not fit the path unfragmented.
    explicit Sender(const LoadPage& plan);
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    std::vector<int> sockets() const;

    // To be called with SIGTERM and SIGINT blocked. `started` is called after the first packet.
    template <class Started>
    void run(LoadPage& page, const Started& started);

  private:
    // First in each payload, for who wants to tell packets apart.
    struct Tag {
        char magic[8];
        std::uint64_t number;
    };
    static constexpr std::size_t kBatch = 64;

    void send(LoadPage& page, std::uint64_t first, std::uint64_t count);
    void send_to(LoadPage& page, std::size_t destination, std::size_t count);

    const Pacing pacing_;
    std::vector<Descriptor> sockets_;
    std::vector<std::uint8_t> filler_;
    std::vector<std::uint64_t> numbers_;  // of the next packet, by destination
    std::array<Tag, kBatch> tags_{};
    std::array<std::array<iovec, 2>, kBatch> parts_{};
    std::array<mmsghdr, kBatch> messages_{};
};

// Sleeps until `until`; true if told to end.
bool sleep_or_stop(Nanos until);

constexpr Nanos kTick = 500_us;            // packets due within a tick go together
constexpr Nanos kBehind = 20_ms;           // what is later than this is not made up for
constexpr std::uint64_t kLeastBehind = 4;  // packets

template <class Started>
void Sender::run(LoadPage& page, const Started& started) {
    const Nanos start = monotonic_now();
    page.started_mono_ns.store(start.value);
    const Nanos end = page.ttl_ns == 0 ? Nanos::never() : saturating_add(start, {page.ttl_ns});
    const std::uint64_t most_behind = std::max(kLeastBehind, pacing_.packets_in(kBehind));
    LoadEnd reason = LoadEnd::kTimeUp;
    std::uint64_t sent = 0;
    for (Nanos now = start; now < end; now = monotonic_now()) {
        const std::uint64_t due = pacing_.due(now - start);
        if (due - sent > most_behind) {
            page.skipped.fetch_add(due - sent - most_behind, std::memory_order_relaxed);
            sent = due - most_behind;
        }
        send(page, sent, due - sent);
        if (sent == 0) started();
        sent = due;
        const Nanos next = saturating_add(start, pacing_.when(sent));
        if (sleep_or_stop(std::min(end, std::max(next, now + kTick)))) {
            reason = LoadEnd::kStopped;
            break;
        }
    }
    page.ended_mono_ns.store(monotonic_now().value);
    page.end.store(static_cast<std::uint32_t>(reason));
}

}  // namespace genie
