// Frames over Gloo's point-to-point API (`UnboundBuffer`, tcp transport): a check on the engine's own
// transports, with a library that others wrote, not a fast one.
//
// Gloo blocks, so each connection has two threads of its own (`gloo_lane.h`) that send and receive one frame
// at a time, its head on one slot, its payload on another. They tell the rank's thread through a queue and an
// eventfd. Gloo sends nothing before the receive is posted, so nothing piles up. Connecting cannot be
// interrupted before its timeout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gloo_lane.h"
#include "program.h"
#include "runner.h"
#include "sockets.h"
#include "transport.h"

namespace genie {

class GlooTransport {
  public:
    explicit GlooTransport(const RankContext& context);
    GlooTransport(const GlooTransport&) = delete;
    GlooTransport& operator=(const GlooTransport&) = delete;
    ~GlooTransport();

    Opened open();
    // Connects all pairs, then proves the run's token both ways on each connection.
    void connect_all(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped);

    void gather(Nanos now, Nanos until);
    bool gathered() const { return !reports_.empty(); }

    bool poll(Sink& sink, Nanos now);
    bool pending() const { return false; }
    bool busy(std::uint32_t connection) const { return sending_[connection].now; }
    bool send(std::uint32_t connection, const Frame& frame, SendTimes& times);
    void send_credit(std::uint32_t connection, std::uint64_t messages);
    bool drained() const { return unsent_ == 0; }
    std::uint64_t moved() const { return moved_; }

    // For tests: closes the pair under the rank's feet.
    void break_connection(std::uint32_t connection);

  private:
    struct Sending {
        bool now = false;
        Nanos first;  // when the frame was handed to its lane
        std::uint64_t sent = 0;
        std::uint64_t credit = 0;  // the peer's word may come before that of our own thread
    };

    void make_lanes();
    void greet_all(Nanos limit);
    void tell_sent(const GlooReport& report, Sink& sink);
    void tell_credit(const GlooReport& report, Sink& sink);

    const Program& program_;
    const Token token_;
    const int stop_fd_;
    const std::size_t send_bytes_;
    const std::size_t receive_bytes_;
    GlooReports arrivals_;
    std::shared_ptr<::gloo::transport::Device> device_;
    std::shared_ptr<::gloo::transport::Context> context_;
    std::vector<std::uint8_t> payload_;  // of all lanes, unless each message is verified
    std::vector<std::unique_ptr<GlooLane>> lanes_;
    std::vector<Sending> sending_;
    std::vector<GlooReport> reports_;  // taken from arrivals_, not yet told
    std::uint64_t unsent_ = 0;
    std::uint64_t moved_ = 0;
};

}  // namespace genie
