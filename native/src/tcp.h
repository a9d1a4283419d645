// Frames over kernel TCP: one connection for each peer and channel, all of them in one edge-triggered epoll
// set.
//
// Payload is sent from one shared buffer and received with MSG_TRUNC, so its bytes are never looked at; with
// the program's verify flag they are a pattern that is made and checked instead. Setting up (`open`,
// `connect_all`) may block and throws Failure; afterwards nothing blocks.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "descriptor.h"
#include "program.h"
#include "runner.h"
#include "sockets.h"
#include "transport.h"

namespace genie {

class TcpTransport {
  public:
    explicit TcpTransport(const RankContext& context);

    Opened open();
    // Connects all peers and exchanges greetings with each. `stopped` is asked whenever stop_fd is readable.
    void connect_all(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped);

    // Waits until bytes can be moved, `until` has come, or stop_fd is readable. Does not deliver anything.
    void gather(Nanos now, Nanos until);

    bool gathered() const { return gathered_count_ > 0; }

    // -- as Rank wants it
    // ---------------------------------------------------------------------------------------
    bool poll(Sink& sink, Nanos now);
    bool pending() const { return !readable_.empty(); }
    bool busy(std::uint32_t connection) const {
        return peers_[connection].sending || peers_[connection].sending_credit;
    }
    bool send(std::uint32_t connection, const Frame& frame, SendTimes& times);
    void send_credit(std::uint32_t connection, std::uint64_t messages);
    bool drained() const { return unsent_ == 0; }
    std::uint64_t moved() const { return moved_; }

    // For tests: closes a connection under the rank's feet, with a reset.
    void break_connection(std::uint32_t connection);

  private:
    struct Peer {
        Descriptor socket;
        bool lost = false;
        // Receiving.
        Frame head;
        std::uint32_t head_bytes = 0;
        std::uint64_t payload_left = 0;
        bool in_readable = false;
        bool to_the_end = false;  // the peer has closed: read until end of file
        // Sending.
        bool sending = false;
        bool sending_credit = false;
        bool credit_due = false;
        std::uint64_t credit = 0;
        Frame frame;
        std::uint64_t sent = 0;  // of head and payload
        SendTimes times{};
        std::string failure;
    };

    void watch(std::uint32_t connection);
    bool read_some(std::uint32_t connection, Sink& sink);
    bool take(std::uint32_t connection, const std::uint8_t* data, std::size_t size, Sink& sink);
    bool flush(std::uint32_t connection);
    void start_credit(Peer& peer);
    void lose(std::uint32_t connection, Sink& sink, const std::string& reason);
    void refuse_strangers();

    const Program& program_;
    const Token token_;
    const int stop_fd_;
    const Log log_;
    const bool verify_;
    Descriptor epoll_;
    Descriptor timer_;  // only where the kernel lacks epoll_pwait2
    Descriptor listener_;
    std::vector<Peer> peers_;
    std::vector<std::uint32_t> readable_;
    std::array<epoll_event, 64> gathered_{};
    int gathered_count_ = 0;
    std::uint32_t unsent_ = 0;
    std::uint64_t moved_ = 0;
    std::vector<std::uint8_t> scratch_;       // what recv writes
    std::vector<std::uint8_t> send_scratch_;  // only with verify
};

}  // namespace genie
