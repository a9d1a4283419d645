#include "sender.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>

#include "failure.h"

namespace genie {
namespace {

constexpr char kMagic[] = "GNIELOAD";
constexpr int kRefusalsInTurn = 2;  // pending ICMP errors that one call may be told of before it gives up

template <class Value>
void set_option(int fd, int level, int name, Value value, const std::string& what) {
    if (::setsockopt(fd, level, name, &value, sizeof value) != 0) fail_errno(Code::kConnect, what);
}

std::string text_of(const LoadDestination& to) {
    in_addr address{htonl(to.ipv4)};
    char text[INET_ADDRSTRLEN];
    ::inet_ntop(AF_INET, &address, text, sizeof text);
    return std::string(text) + ":" + std::to_string(to.port);
}

sockaddr_in address_of(std::uint32_t ipv4, std::uint32_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(ipv4);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
}

Descriptor open_towards(const LoadPage& plan, const LoadDestination& to) {
    const std::string where = text_of(to);
    Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int fd = socket.get();
    if (!socket.valid()) fail_errno(Code::kConnect, "cannot make a socket");
    // Never fragmented: a packet of this load is one packet everywhere.
    set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, int{IP_PMTUDISC_DO}, "cannot forbid fragments");
    if (plan.ecn != 0) set_option(fd, IPPROTO_IP, IP_TOS, int{IPTOS_ECN_ECT0}, "cannot set ECT(0)");
    if (plan.source_port != 0) {
        set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1, "cannot share the source port between destinations");
        const sockaddr_in from = address_of(INADDR_ANY, plan.source_port);
        if (::bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0)
            fail_errno(Code::kConnect, "cannot send from port " + std::to_string(plan.source_port));
    }
    const sockaddr_in address = address_of(to.ipv4, to.port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        fail_errno(Code::kConnect, "no way to " + where);
    int mtu = 0;
    socklen_t size = sizeof mtu;
    if (::getsockopt(fd, IPPROTO_IP, IP_MTU, &mtu, &size) != 0)
        fail_errno(Code::kConnect, "cannot tell the largest packet to " + where);
    if (plan.packet_bytes > static_cast<std::uint32_t>(mtu)) {
        throw Failure(Code::kConnect, "packets of " + std::to_string(plan.packet_bytes) +
                                          " bytes do not fit: to " + where + " at most " +
                                          std::to_string(mtu));
    }
    return socket;
}

}  // namespace

Sender::Sender(const LoadPage& plan)
    : pacing_{plan.rate_bps, plan.packet_bytes, {plan.on_ns}, {plan.off_ns}},
      filler_(plan.packet_bytes - kHeadersBytes - sizeof(Tag)),
      numbers_(plan.destinations, 0) {
    for (std::uint32_t i = 0; i < plan.destinations; ++i) sockets_.push_back(open_towards(plan, plan.to[i]));
    for (std::size_t i = 0; i < kBatch; ++i) {
        std::memcpy(tags_[i].magic, kMagic, sizeof tags_[i].magic);
        parts_[i] = {iovec{&tags_[i], sizeof(Tag)}, iovec{filler_.data(), filler_.size()}};
        messages_[i].msg_hdr.msg_iov = parts_[i].data();
        messages_[i].msg_hdr.msg_iovlen = parts_[i].size();
    }
}

std::vector<int> Sender::sockets() const {
    std::vector<int> all;
    for (const Descriptor& socket : sockets_) all.push_back(socket.get());
    return all;
}

// Packets go to the destinations in turn.
void Sender::send(LoadPage& page, std::uint64_t first, std::uint64_t count) {
    const std::uint64_t others = sockets_.size();
    for (std::uint64_t i = 0; i < std::min(count, others); ++i) {
        std::uint64_t left = (count - i + others - 1) / others;
        while (left > 0) {
            const std::size_t now = std::min<std::uint64_t>(left, kBatch);
            send_to(page, (first + i) % others, now);
            left -= now;
        }
    }
}

void Sender::send_to(LoadPage& page, std::size_t destination, std::size_t count) {
    LoadDestination& to = page.to[destination];
    for (std::size_t i = 0; i < count; ++i) tags_[i].number = numbers_[destination]++;
    int refusals = 0;
    for (std::size_t at = 0; at < count;) {
        const int sent = ::sendmmsg(sockets_[destination].get(), &messages_[at],
                                    static_cast<unsigned>(count - at), MSG_DONTWAIT);
        if (sent > 0) {
            const auto packets = static_cast<std::uint64_t>(sent);
            to.packets.fetch_add(packets, std::memory_order_relaxed);
            page.packets.fetch_add(packets, std::memory_order_relaxed);
            page.bytes.fetch_add(packets * pacing_.packet_bytes, std::memory_order_relaxed);
            at += packets;
            continue;
        }
        if (errno == EINTR) continue;
        if (errno == ECONNREFUSED && refusals++ < kRefusalsInTurn) {
            // Told of an earlier packet; this one has not been tried yet.
            page.refused.fetch_add(1, std::memory_order_relaxed);
            continue;
        }
        const bool full = errno == EAGAIN || errno == ENOBUFS;
        const std::uint64_t lost = full ? count - at : 1;
        (full ? page.blocked : page.errors).fetch_add(lost, std::memory_order_relaxed);
        to.errors.fetch_add(lost, std::memory_order_relaxed);
        page.last_errno.store(static_cast<std::uint32_t>(errno), std::memory_order_relaxed);
        at += lost;
    }
}

bool sleep_or_stop(Nanos until) {
    sigset_t ending;
    ::sigemptyset(&ending);
    ::sigaddset(&ending, SIGTERM);
    ::sigaddset(&ending, SIGINT);
    for (Nanos now = monotonic_now();; now = monotonic_now()) {
        const std::int64_t left = std::max<std::int64_t>(0, (until - now).value);
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        if (::sigtimedwait(&ending, nullptr, &timeout) > 0) return true;
        if (errno == EAGAIN) return false;
    }
}

}  // namespace genie
