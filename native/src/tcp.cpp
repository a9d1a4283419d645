#include "tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "clock.h"
#include "pattern.h"
#include "settings.h"
#include "sockets.h"

namespace genie {
namespace {

constexpr std::size_t kPayloadBytes = 1 << 20;
constexpr std::size_t kMostPieces = 64;  // of the payload buffer in one sendmsg
constexpr std::size_t kPeekBytes =
    4096;  // read this much when a head is expected: small payloads come with it
constexpr std::size_t kVerifyBytes = 64 << 10;
constexpr std::uint64_t kTurnBytes = 8 << 20;  // then other connections have theirs
constexpr std::uint64_t kStopTag = ~std::uint64_t{0};
constexpr std::uint64_t kListenerTag = kStopTag - 1;
constexpr std::uint64_t kTimerTag = kStopTag - 2;

// Never written, so all its pages are the kernel's one zero page: it costs no memory and stays in the cache.
alignas(4096) const std::uint8_t kPayload[kPayloadBytes] = {};

}  // namespace

TcpTransport::TcpTransport(const RankContext& context)
    : program_(context.program),
      token_(context.token),
      stop_fd_(context.stop_fd),
      log_(context.log),
      verify_(program_.verify()),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      peers_(program_.connections.size()),
      scratch_(verify_ ? kVerifyBytes : kPeekBytes),
      send_scratch_(verify_ ? kVerifyBytes : 0) {
    if (!epoll_.valid()) fail_errno(Code::kInternal, "cannot create an epoll set");
    Settings("tcp", program_.settings).done();
    readable_.reserve(2 * peers_.size());
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kStopTag;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_fd_, &event) != 0) {
        fail_errno(Code::kInternal, "cannot watch the stop signal");
    }
}

Opened TcpTransport::open() {
    const ProgramHeader& header = program_.header;
    listener_ = make_socket(program_);
    const int one = 1;
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in address = to_sockaddr(header.listen_ipv4, header.listen_port);
    const std::string where = address_text(header.listen_ipv4, header.listen_port);
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        fail_errno(Code::kConnect, "cannot listen on " + where);
    }
    if (::listen(listener_.get(), 4096) != 0) fail_errno(Code::kConnect, "cannot listen on " + where);
    socklen_t size = sizeof address;
    if (::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        fail_errno(Code::kConnect, "cannot learn the port of " + where);
    }
    return {ntohs(address.sin_port), {}, {}};
}

void TcpTransport::watch(std::uint32_t connection) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u64 = connection;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peers_[connection].socket.get(), &event) != 0) {
        fail_errno(Code::kInternal, "cannot watch a connection");
    }
}

void TcpTransport::connect_all(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped) {
    std::vector<Descriptor> sockets =
        meet(program_, token_, listener_.get(), stop_fd_, endpoints, log_, stopped);
    for (std::uint32_t i = 0; i < peers_.size(); ++i) {
        peers_[i].socket = std::move(sockets[i]);
        watch(i);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kListenerTag;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) {
        fail_errno(Code::kInternal, "cannot watch the listening socket");
    }
}

void TcpTransport::gather(Nanos now, Nanos until) {
    const std::int64_t left =
        until == Nanos::never() ? -1 : std::max<std::int64_t>(0, until.value - now.value);
    timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    if (!timer_.valid()) {
        const long count = ::syscall(SYS_epoll_pwait2, epoll_.get(), gathered_.data(), gathered_.size(),
                                     left < 0 ? nullptr : &timeout, nullptr, 0);
        if (count >= 0) {
            gathered_count_ = static_cast<int>(count);
            return;
        }
        gathered_count_ = 0;
        if (errno == EINTR) return;
        if (errno != ENOSYS && errno != EPERM) fail_errno(Code::kInternal, "cannot wait for events");
        timer_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = kTimerTag;
        if (!timer_.valid() || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0) {
            fail_errno(Code::kInternal, "cannot make a timer");
        }
    }
    if (left > 0) {
        itimerspec at{};
        at.it_value = {until.value / 1'000'000'000, until.value % 1'000'000'000};
        ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
    }
    gathered_count_ =
        ::epoll_wait(epoll_.get(), gathered_.data(), static_cast<int>(gathered_.size()), left == 0 ? 0 : -1);
    if (gathered_count_ < 0) {
        gathered_count_ = 0;
        if (errno != EINTR) fail_errno(Code::kInternal, "cannot wait for events");
    }
}

bool TcpTransport::poll(Sink& sink, Nanos /*now*/) {
    bool any = false;
    // Connections that had more than their turn come first.
    const std::size_t left_over = readable_.size();
    for (std::size_t i = 0; i < left_over; ++i) {
        const std::uint32_t connection = readable_[i];
        peers_[connection].in_readable = false;
        read_some(connection, sink);
        if (!peers_[connection].failure.empty()) lose(connection, sink, peers_[connection].failure);
        any = true;
    }
    readable_.erase(readable_.begin(), readable_.begin() + static_cast<std::ptrdiff_t>(left_over));
    for (int i = 0; i < gathered_count_; ++i) {
        const std::uint64_t tag = gathered_[static_cast<std::size_t>(i)].data.u64;
        const std::uint32_t events = gathered_[static_cast<std::size_t>(i)].events;
        if (tag == kStopTag) continue;
        if (tag == kListenerTag) {
            refuse_strangers();
            continue;
        }
        if (tag == kTimerTag) {
            std::uint64_t times;
            if (::read(timer_.get(), &times, sizeof times) < 0 && errno != EAGAIN) {
                fail_errno(Code::kInternal, "cannot read the timer");
            }
            continue;
        }
        const auto connection = static_cast<std::uint32_t>(tag);
        Peer& peer = peers_[connection];
        if (peer.lost) continue;
        if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) peer.to_the_end = true;
        if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0 && !peer.in_readable) {
            read_some(connection, sink);
            any = true;
        }
        if ((events & EPOLLOUT) != 0 && (peer.sending || peer.sending_credit) && !peer.lost) {
            any = true;
            if (flush(connection)) {
                sink.on_sent(connection, peer.times);
            } else if (!busy(connection)) {
                sink.on_free(connection);
            }
        }
    }
    gathered_count_ = 0;
    return any;
}

void TcpTransport::lose(std::uint32_t connection, Sink& sink, const std::string& reason) {
    Peer& peer = peers_[connection];
    if (peer.lost) return;
    peer.lost = true;
    sink.on_lost(connection, Code::kPeerClosed, reason);
}

// Reads what is there; false if the connection or the rank has failed.
bool TcpTransport::read_some(std::uint32_t connection, Sink& sink) {
    Peer& peer = peers_[connection];
    std::uint64_t turn = 0;
    while (!peer.lost) {
        const bool unseen = !verify_ && peer.payload_left >= kPeekBytes;
        // Of a long payload no more than its rest is taken; the kernel drops it without a copy.
        const std::size_t wanted =
            unseen ? std::min<std::uint64_t>(peer.payload_left, 1 << 30) : scratch_.size();
        // The bare system call where nothing is written: thread sanitizers take recv to write at the null
        // pointer.
        const ssize_t count = unseen ? ::syscall(SYS_recvfrom, peer.socket.get(), nullptr, wanted,
                                                 MSG_DONTWAIT | MSG_TRUNC, nullptr, nullptr)
                                     : ::recv(peer.socket.get(), scratch_.data(), wanted, MSG_DONTWAIT);
        if (count < 0) {
            if (errno == EAGAIN) return true;
            if (errno == EINTR) continue;
            const std::string who = "rank " + std::to_string(program_.connections[connection].peer);
            lose(connection, sink, with_reason("connection to " + who + " broke", errno));
            return false;
        }
        if (count == 0) {
            lose(connection, sink,
                 "rank " + std::to_string(program_.connections[connection].peer) + " closed the connection");
            return false;
        }
        const auto got = static_cast<std::uint64_t>(count);
        moved_ += got;
        if (unseen) {
            peer.payload_left -= got;
            if (peer.payload_left == 0) sink.on_message(connection, monotonic_now());
        } else if (!take(connection, scratch_.data(), got, sink)) {
            peer.lost = true;  // its stream cannot be followed any more
            return false;
        }
        if (got < wanted && !peer.to_the_end) return true;  // drained; the edge will tell of more
        turn += got;
        if (turn >= kTurnBytes && !peer.in_readable) {
            peer.in_readable = true;
            readable_.push_back(connection);
            return true;
        }
    }
    return false;
}

// Cuts bytes into frames; false if they are none.
bool TcpTransport::take(std::uint32_t connection, const std::uint8_t* data, std::size_t size, Sink& sink) {
    Peer& peer = peers_[connection];
    const Nanos now = monotonic_now();
    for (;;) {
        if (peer.payload_left > 0) {
            const std::size_t taken = std::min<std::uint64_t>(peer.payload_left, size);
            if (verify_) {
                const std::uint64_t offset = peer.head.bytes - peer.payload_left;
                const std::size_t same = Pattern(peer.head).compare(data, offset, taken);
                if (same != taken) {
                    sink.on_lost(connection, Code::kBadPayload,
                                 "byte " + std::to_string(offset + same) + " of message " +
                                     std::to_string(peer.head.message & kNone) + " of call " +
                                     std::to_string(peer.head.call_id) + " from rank " +
                                     std::to_string(program_.connections[connection].peer) +
                                     " is not the one that was sent");
                    return false;
                }
            }
            data += taken;
            size -= taken;
            peer.payload_left -= taken;
            if (peer.payload_left > 0) return true;
            sink.on_message(connection, now);
        }
        if (size == 0) return true;
        const std::size_t taken = std::min<std::size_t>(size, sizeof(Frame) - peer.head_bytes);
        std::memcpy(reinterpret_cast<std::uint8_t*>(&peer.head) + peer.head_bytes, data, taken);
        data += taken;
        size -= taken;
        peer.head_bytes += static_cast<std::uint32_t>(taken);
        if (peer.head_bytes < sizeof(Frame)) return true;
        peer.head_bytes = 0;
        const Frame& head = peer.head;
        if (head.magic == kFrameMagic && head.type == FrameType::kCredit) {
            sink.on_credit(connection, head.bytes, now);
            continue;
        }
        if (head.magic != kFrameMagic || head.type != FrameType::kData) {
            sink.on_lost(connection, Code::kProtocol,
                         "rank " + std::to_string(program_.connections[connection].peer) +
                             " sent what is not a frame (type " +
                             std::to_string(static_cast<int>(head.type)) + ")");
            return false;
        }
        if (!sink.on_header(connection, head, now)) return false;
        peer.payload_left = head.bytes;
        if (head.bytes == 0) sink.on_message(connection, now);
    }
}

bool TcpTransport::send(std::uint32_t connection, const Frame& frame, SendTimes& times) {
    Peer& peer = peers_[connection];
    peer.frame = frame;
    peer.sent = 0;
    peer.sending = true;
    ++unsent_;
    peer.times.first = monotonic_now();
    const bool done = flush(connection);
    times = peer.times;
    return done;
}

void TcpTransport::send_credit(std::uint32_t connection, std::uint64_t messages) {
    Peer& peer = peers_[connection];
    peer.credit = messages;
    if (!peer.credit_due) {
        peer.credit_due = true;
        ++unsent_;
    }
    if (!peer.sending && !peer.sending_credit) {
        start_credit(peer);
        flush(connection);
    }
}

void TcpTransport::start_credit(Peer& peer) {
    peer.frame = {};
    peer.frame.type = FrameType::kCredit;
    peer.frame.bytes = peer.credit;
    peer.sent = 0;
    peer.credit_due = false;
    peer.sending_credit = true;
}

// Hands over as much as the kernel takes, a due credit after the message. True if the message went out whole.
bool TcpTransport::flush(std::uint32_t connection) {
    Peer& peer = peers_[connection];
    if (peer.lost || !peer.failure.empty()) return false;
    bool message_done = false;
    while (peer.sending || peer.sending_credit) {
        const std::uint64_t payload = peer.sending_credit ? 0 : peer.frame.bytes;
        std::uint64_t left = sizeof(Frame) + payload - peer.sent;
        if (left > 0) {
            iovec pieces[kMostPieces + 1];
            std::size_t count = 0;
            std::uint64_t at = peer.sent;
            if (at < sizeof(Frame)) {
                pieces[count++] = {reinterpret_cast<std::uint8_t*>(&peer.frame) + at, sizeof(Frame) - at};
                left -= sizeof(Frame) - at;
                at = sizeof(Frame);
            }
            if (verify_ && left > 0) {
                const std::size_t size = std::min<std::uint64_t>(left, scratch_.size());
                Pattern(peer.frame).fill(send_scratch_.data(), at - sizeof(Frame), size);
                pieces[count++] = {send_scratch_.data(), size};
                left = 0;
            }
            for (; left > 0 && count <= kMostPieces; ++count) {
                const std::size_t size = std::min<std::uint64_t>(left, kPayloadBytes);
                pieces[count] = {const_cast<std::uint8_t*>(kPayload), size};
                left -= size;
            }
            msghdr message{};
            message.msg_iov = pieces;
            message.msg_iovlen = count;
            const ssize_t sent = ::sendmsg(peer.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent < 0) {
                if (errno == EINTR) continue;
                if (errno != EAGAIN) {
                    peer.failure =
                        with_reason("connection to rank " +
                                        std::to_string(program_.connections[connection].peer) + " broke",
                                    errno);
                    // Told by `poll`, after what had arrived before.
                    if (!std::exchange(peer.in_readable, true)) readable_.push_back(connection);
                }
                return message_done;
            }
            peer.sent += static_cast<std::uint64_t>(sent);
            moved_ += static_cast<std::uint64_t>(sent);
            continue;
        }
        --unsent_;
        if (peer.sending_credit) {
            peer.sending_credit = false;
        } else {
            peer.sending = false;
            message_done = true;
            peer.times.last = monotonic_now();
        }
        if (peer.credit_due) start_credit(peer);
    }
    return message_done;
}

void TcpTransport::refuse_strangers() {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    const Descriptor stranger(
        ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC));
    if (stranger.valid() && log_) {
        log_("refused a connection from " +
             address_text(ntohl(address.sin_addr.s_addr), ntohs(address.sin_port)) +
             ": all peers are connected");
    }
}

void TcpTransport::break_connection(std::uint32_t connection) {
    const linger now{1, 0};
    ::setsockopt(peers_[connection].socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    peers_[connection].socket.reset();
}

}  // namespace genie
