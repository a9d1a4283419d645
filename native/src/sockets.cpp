#include "sockets.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <deque>
#include <utility>

#include "clock.h"
#include "failure.h"
#include "sha256.h"
#include "transport.h"

#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif

namespace genie {
namespace {

constexpr Nanos kFirstRetry = 5_ms;
constexpr Nanos kLongestRetry = 250_ms;
constexpr std::size_t kMostStrangers = 256;  // at once, beyond the peers that are due

struct Greeting {
    Frame frame;
    std::uint8_t run_id[16];
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t channel;
    std::uint32_t zero;
    std::uint8_t proof[32];
};
static_assert(sizeof(Greeting) == 96);

Digest prove(const Greeting& greeting, const Token& token) {
    return hmac_sha256(token, {greeting.run_id, 32});  // run id, from, to, channel, zero lie in a row
}

class Meeting {
  public:
    Meeting(const Program& program, const Token& token, int listener, const std::vector<Endpoint>& endpoints,
            const Log& log)
        : program_(program),
          token_(token),
          listener_(listener),
          log_(log),
          links_(program.connections.size()) {
        for (std::size_t i = 0; i < links_.size(); ++i) {
            const Connection& connection = program.connections[i];
            Link& link = links_[i];
            link.remote = {connection.peer, connection.remote_ipv4, connection.remote_port};
            if (connection.role == Role::kAccept) continue;
            for (const Endpoint& endpoint : endpoints) {
                if (endpoint.rank == connection.peer) link.remote = endpoint;
            }
            if (link.remote.port == 0) {
                throw Failure(Code::kConnect,
                              "nobody said where rank " + std::to_string(connection.peer) + " listens",
                              connection.peer);
            }
        }
    }

    std::vector<Descriptor> run(int stop_fd, const std::function<bool()>& stopped) {
        const Nanos begin = monotonic_now();
        const Nanos deadline = begin + Nanos{std::int64_t{program_.header.connect_timeout_s} * 1'000'000'000};
        while (ready_ < links_.size()) {
            const Nanos now = monotonic_now();
            if (now >= deadline) give_up();
            Nanos wake = deadline;
            for (std::size_t i = 0; i < links_.size(); ++i) {
                Link& link = links_[i];
                if (program_.connections[i].role == Role::kAccept || link.stage != Stage::kIdle) continue;
                if (link.retry_at <= now) {
                    dial(i, now);
                } else {
                    wake = std::min(wake, link.retry_at);
                }
            }
            wait(stop_fd, now, wake, stopped);
        }
        std::vector<Descriptor> sockets;
        sockets.reserve(links_.size());
        for (Link& link : links_) sockets.push_back(std::move(link.socket));
        return sockets;
    }

  private:
    enum class Stage { kIdle, kConnecting, kGreeting, kReady };

    struct Link {
        Descriptor socket;
        Stage stage = Stage::kIdle;
        Endpoint remote;
        Nanos retry_at;
        Nanos pause = kFirstRetry;
        std::string trouble = "no connection came";
        Greeting reply;
        std::size_t have = 0;
    };

    struct Caller {
        Descriptor socket;
        std::string address;
        Greeting greeting;
        std::size_t have = 0;
        bool gone = false;
    };

    Greeting greet(std::uint32_t peer, std::uint16_t channel) const {
        Greeting greeting{};
        greeting.frame.type = FrameType::kGreet;
        greeting.frame.channel = channel;
        greeting.frame.bytes = sizeof(Greeting) - sizeof(Frame);
        std::memcpy(greeting.run_id, program_.header.run_id, 16);
        greeting.from = program_.header.rank;
        greeting.to = peer;
        greeting.channel = channel;
        const Digest proof = prove(greeting, token_);
        std::copy(proof.begin(), proof.end(), greeting.proof);
        return greeting;
    }

    // Empty if it is a greeting of `from` to this rank, else what is wrong with it.
    std::string examine(const Greeting& greeting) const {
        const Frame& frame = greeting.frame;
        if (frame.magic != kFrameMagic || frame.type != FrameType::kGreet ||
            frame.bytes != sizeof(Greeting) - sizeof(Frame)) {
            return "it did not greet";
        }
        if (!same_digest(prove(greeting, token_), greeting.proof)) return "it lacks this run's token";
        if (std::memcmp(greeting.run_id, program_.header.run_id, 16) != 0) return "it belongs to another run";
        if (greeting.to != program_.header.rank) {
            return "rank " + std::to_string(greeting.from) + " looked for rank " +
                   std::to_string(greeting.to);
        }
        return {};
    }

    void dial(std::size_t index, Nanos now) {
        Link& link = links_[index];
        const Connection& connection = program_.connections[index];
        link.socket = make_socket(program_);
        const int fd = link.socket.get();
        const int one = 1;
        if (connection.local_port != 0) {
            ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        } else {
            ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        }
        const std::uint32_t own = program_.header.listen_ipv4;
        if (own != 0 || connection.local_port != 0) {
            const sockaddr_in local = to_sockaddr(own, connection.local_port);
            if (::bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0) {
                try_later(index, now,
                          with_reason("cannot use " + address_text(own, connection.local_port), errno));
                return;
            }
        }
        const sockaddr_in remote = to_sockaddr(link.remote.ipv4, link.remote.port);
        if (::connect(fd, reinterpret_cast<const sockaddr*>(&remote), sizeof remote) == 0) {
            link.stage = Stage::kConnecting;  // a socket that can be written to finishes it
        } else if (errno == EINPROGRESS) {
            link.stage = Stage::kConnecting;
        } else {
            try_later(index, now, with_reason("cannot connect", errno));
        }
    }

    void try_later(std::size_t index, Nanos now, std::string trouble) {
        Link& link = links_[index];
        link.socket.reset();
        link.stage = Stage::kIdle;
        link.have = 0;
        link.trouble = std::move(trouble);
        link.retry_at = now + link.pause;
        link.pause = std::min(kLongestRetry, link.pause + link.pause);
    }

    void wait(int stop_fd, Nanos now, Nanos wake, const std::function<bool()>& stopped) {
        polls_.clear();
        who_.clear();
        polls_.push_back({stop_fd, POLLIN, 0});
        polls_.push_back({listener_, POLLIN, 0});
        for (std::size_t i = 0; i < links_.size(); ++i) {
            const Link& link = links_[i];
            if (link.stage != Stage::kConnecting && link.stage != Stage::kGreeting) continue;
            polls_.push_back({link.socket.get(),
                              static_cast<short>(link.stage == Stage::kConnecting ? POLLOUT : POLLIN), 0});
            who_.push_back(i);
        }
        const std::size_t dialled = who_.size();
        for (const Caller& caller : callers_) polls_.push_back({caller.socket.get(), POLLIN, 0});
        const std::int64_t left = std::max<std::int64_t>(0, wake.value - now.value);
        const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
        if (::ppoll(polls_.data(), polls_.size(), &timeout, nullptr) < 0 && errno != EINTR) {
            fail_errno(Code::kInternal, "cannot wait for connections");
        }
        const Nanos later = monotonic_now();
        if (stopped()) throw Failure(Code::kAborted, "stopped while it connected; " + missing());
        const std::size_t callers = callers_.size();
        for (std::size_t i = 0; i < dialled; ++i) {
            if (polls_[2 + i].revents != 0) answer(who_[i], later);
        }
        for (std::size_t i = 0; i < callers; ++i) {
            if (polls_[2 + dialled + i].revents != 0) listen_to(callers_[i]);
        }
        std::erase_if(callers_, [](const Caller& caller) { return caller.gone; });
        if (polls_[1].revents != 0) accept_callers();
    }

    // Our side of a connection that we dialled.
    void answer(std::size_t index, Nanos now) {
        Link& link = links_[index];
        const Connection& connection = program_.connections[index];
        if (link.stage == Stage::kConnecting) {
            int error = 0;
            socklen_t size = sizeof error;
            ::getsockopt(link.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
            if (error != 0) return try_later(index, now, with_reason("cannot connect", error));
            const Greeting greeting = greet(connection.peer, connection.channel);
            if (::send(link.socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) {
                return try_later(index, now, with_reason("cannot greet", errno));
            }
            link.stage = Stage::kGreeting;
            return;
        }
        auto* into = reinterpret_cast<std::uint8_t*>(&link.reply) + link.have;
        const ssize_t count = ::recv(link.socket.get(), into, sizeof link.reply - link.have, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (count <= 0)
            return try_later(index, now, "it closed the connection at our greeting: another token or run?");
        link.have += static_cast<std::size_t>(count);
        if (link.have < sizeof link.reply) return;
        const std::string wrong = examine(link.reply);
        if (!wrong.empty()) return try_later(index, now, "who answered there is not the peer: " + wrong);
        if (link.reply.from != connection.peer || link.reply.channel != connection.channel) {
            return try_later(index, now, "rank " + std::to_string(link.reply.from) + " answered there");
        }
        link.stage = Stage::kReady;
        ++ready_;
    }

    void accept_callers() {
        while (callers_.size() < links_.size() + kMostStrangers) {
            sockaddr_in address{};
            socklen_t size = sizeof address;
            Descriptor socket(::accept4(listener_, reinterpret_cast<sockaddr*>(&address), &size,
                                        SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!socket.valid()) {
                if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                    fail_errno(Code::kOutOfMemory, "cannot accept a connection");
                }
                return;
            }
            const int one = 1;
            ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            callers_.push_back({std::move(socket),
                                address_text(ntohl(address.sin_addr.s_addr), ntohs(address.sin_port)),
                                {}});
        }
    }

    // The other side of a connection that a caller dialled.
    void listen_to(Caller& caller) {
        auto* into = reinterpret_cast<std::uint8_t*>(&caller.greeting) + caller.have;
        const ssize_t count =
            ::recv(caller.socket.get(), into, sizeof caller.greeting - caller.have, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (count <= 0) return refuse(caller, "it left before it had greeted");
        caller.have += static_cast<std::size_t>(count);
        if (caller.have >= sizeof(Frame) && caller.greeting.frame.magic != kFrameMagic) {
            return refuse(caller, "it did not greet");
        }
        if (caller.have < sizeof caller.greeting) return;
        const std::string wrong = examine(caller.greeting);
        if (!wrong.empty()) return refuse(caller, wrong);
        const std::uint32_t from = caller.greeting.from;
        for (std::size_t i = 0; i < links_.size(); ++i) {
            const Connection& connection = program_.connections[i];
            if (connection.peer != from || connection.channel != caller.greeting.channel) continue;
            if (connection.role != Role::kAccept) break;
            Link& link = links_[i];
            const Greeting greeting = greet(from, connection.channel);
            if (::send(caller.socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) {
                return refuse(caller, with_reason("cannot answer its greeting", errno));
            }
            // A peer that dials again has given its first connection up.
            if (link.stage != Stage::kReady) ++ready_;
            link.stage = Stage::kReady;
            link.socket = std::move(caller.socket);
            caller.gone = true;
            return;
        }
        refuse(caller, "rank " + std::to_string(from) + " has no business with this rank on channel " +
                           std::to_string(caller.greeting.channel));
    }

    void refuse(Caller& caller, const std::string& why) {
        if (log_) log_("refused a connection from " + caller.address + ": " + why);
        caller.gone = true;
    }

    std::string missing() const {
        for (std::size_t i = 0; i < links_.size(); ++i) {
            if (links_[i].stage == Stage::kReady) continue;
            const Connection& connection = program_.connections[i];
            const std::string peer = "rank " + std::to_string(connection.peer) + " on channel " +
                                     std::to_string(connection.channel);
            if (connection.role == Role::kAccept) return peer + " did not connect";
            return peer + " could not be reached at " +
                   address_text(links_[i].remote.ipv4, links_[i].remote.port) + ": " + links_[i].trouble;
        }
        return "all peers had connected";
    }

    [[noreturn]] void give_up() const {
        std::uint32_t peer = kNone;
        for (std::size_t i = links_.size(); i-- > 0;) {
            if (links_[i].stage != Stage::kReady) peer = program_.connections[i].peer;
        }
        throw Failure(Code::kConnect,
                      missing() + " (within " + std::to_string(program_.header.connect_timeout_s) + " s, " +
                          std::to_string(links_.size() - ready_) + " of " + std::to_string(links_.size()) +
                          " connections are missing)",
                      peer);
    }

    const Program& program_;
    const Token& token_;
    const int listener_;
    const Log& log_;
    std::vector<Link> links_;
    std::deque<Caller> callers_;
    std::vector<pollfd> polls_;
    std::vector<std::size_t> who_;
    std::size_t ready_ = 0;
};

}  // namespace

std::string address_text(std::uint32_t ipv4, std::uint16_t port) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8)
        text += std::to_string(ipv4 >> shift & 255) + (shift != 0 ? "." : ":");
    return text + std::to_string(port);
}

sockaddr_in to_sockaddr(std::uint32_t ipv4, std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(ipv4);
    address.sin_port = htons(port);
    return address;
}

void choose_congestion_control(int fd, const Program& program) {
    const std::string name = program.congestion_control();
    char current[16] = {};
    socklen_t size = sizeof current - 1;
    if (name.empty() ||
        (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, current, &size) == 0 && name == current)) {
        return;
    }
    if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) !=
        0) {
        fail_errno(Code::kConnect, "the kernel refuses congestion control '" + name + "'");
    }
}

Descriptor make_socket(const Program& program) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.valid()) fail_errno(Code::kConnect, "cannot make a socket");
    const int fd = socket.get();
    const int one = 1;
    if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) {
        fail_errno(Code::kConnect, "cannot set TCP_NODELAY");
    }
    choose_congestion_control(fd, program);
    const auto set_buffer = [fd](int option, const char* what, std::uint32_t wanted) {
        const int size = static_cast<int>(wanted);
        if (wanted != 0 && ::setsockopt(fd, SOL_SOCKET, option, &size, sizeof size) != 0) {
            fail_errno(Code::kConnect,
                       std::string("cannot set ") + what + " to " + std::to_string(wanted) + " bytes");
        }
        // The kernel cuts a wish above its limit without a word; it reports twice what it took (socket(7)).
        int taken = 0;
        socklen_t length = sizeof taken;
        if (wanted != 0 && ::getsockopt(fd, SOL_SOCKET, option, &taken, &length) == 0 &&
            static_cast<std::uint32_t>(taken) / 2 < wanted) {
            throw Failure(Code::kConnect, std::string("the kernel limits ") + what + " to " +
                                              std::to_string(taken / 2) + " bytes, " +
                                              std::to_string(wanted) +
                                              " were asked for: raise net.core.wmem_max and rmem_max");
        }
    };
    set_buffer(SO_SNDBUF, "SO_SNDBUF", program.header.sndbuf_bytes);
    set_buffer(SO_RCVBUF, "SO_RCVBUF", program.header.rcvbuf_bytes);
    return socket;
}

std::vector<Descriptor> meet(const Program& program, const Token& token, int listener, int stop_fd,
                             const std::vector<Endpoint>& endpoints, const Log& log,
                             const std::function<bool()>& stopped) {
    std::vector<Descriptor> sockets = Meeting(program, token, listener, endpoints, log).run(stop_fd, stopped);
    // A route with a congestion control of its own replaces the socket's when the connection is made.
    for (const Descriptor& socket : sockets) choose_congestion_control(socket.get(), program);
    return sockets;
}

}  // namespace genie
