// What a rank and the thing that moves its bytes say to each other. TCP and the simulator are transports,
// others are in transports.cpp.
//
// A transport is asked to send one frame at a time on each connection, and tells a `Sink` what happened. All
// calls are made on the rank's thread; none blocks.
#pragma once

#include <cstdint>
#include <string>

#include "failure.h"
#include "units.h"

namespace genie {

constexpr std::uint32_t kFrameMagic = 0x31454e47;  // "GNE1"

enum class FrameType : std::uint16_t { kData = 0, kCredit = 1, kGreet = 2, kReject = 3 };

// Head of everything on a data connection (docs/formats.md §2).
struct Frame {
    std::uint32_t magic = kFrameMagic;
    std::uint32_t call_id = 0;
    std::uint32_t iteration = 0;
    std::uint16_t channel = 0;
    FrameType type = FrameType::kData;
    std::uint64_t bytes = 0;
    std::uint64_t message = 0;
};
static_assert(sizeof(Frame) == 32);

struct SendTimes {
    Nanos first;  // before the first byte was handed over
    Nanos last;   // after the last one was
};

// What a rank's `advance` waits for: bytes always; and this instant. `more` says that it has work left right
// now.
struct Wait {
    Nanos deadline = Nanos::never();
    bool timer = false;  // the deadline is an operator's end, worth spinning for
    bool more = false;
};

class Sink {
  public:
    // Fills in the head of the next message that is due on this connection in this call, with the bytes it
    // should have: for transports on whose wire a message has no head, only the call's id. False: no message
    // is due there and the rank has failed; read no more. `on_message` comes next, or this:
    virtual bool expect(std::uint32_t connection, std::uint32_t call_id, Nanos now, Frame& frame) = 0;
    // What arrived has the size that the frame now says, not that of `expect`. The rank has failed.
    virtual void on_wrong_size(std::uint32_t connection, const Frame& frame) = 0;
    // A data frame's head arrived. False: it is wrong and the rank has failed; read no more.
    virtual bool on_header(std::uint32_t connection, const Frame& frame, Nanos now) = 0;
    // The payload of the frame last announced on this connection is complete.
    virtual void on_message(std::uint32_t connection, Nanos now) = 0;
    // The frame that `send` could not hand over at once now is.
    virtual void on_sent(std::uint32_t connection, SendTimes times) = 0;
    // The connection takes frames again, after a credit that it could not take at once.
    virtual void on_free(std::uint32_t connection) = 0;
    // The peer has received this many messages of ours on this connection so far.
    virtual void on_credit(std::uint32_t connection, std::uint64_t messages, Nanos now) = 0;
    // The connection cannot go on.
    virtual void on_lost(std::uint32_t connection, Code code, const std::string& reason) = 0;

  protected:
    ~Sink() = default;
};

}  // namespace genie
