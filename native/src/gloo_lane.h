// One connection over Gloo: a thread that sends its frames, one that receives them, and what they report to
// the rank's thread. Knows Gloo, not calls or operators.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "descriptor.h"
#include "failure.h"
#include "transport.h"

namespace genie {

struct GlooReport {
    enum class Kind : std::uint8_t { kMessage, kCredit, kSent, kCreditSent, kLost };
    Kind kind = Kind::kLost;
    std::uint32_t connection = 0;
    Frame frame;
    SendTimes times{};  // of a message received: when its head was here, and all of it
    Code code = Code::kNone;
    std::string text;
};

// From many threads to one, which sleeps on `fd`.
class GlooReports {
  public:
    GlooReports();
    void put(GlooReport report);
    // Moves what is there behind `into`.
    void take(std::vector<GlooReport>& into);
    int fd() const { return fd_.get(); }

  private:
    Descriptor fd_;
    std::mutex mutex_;
    std::vector<GlooReport> reports_;
};

class GlooLane {
  public:
    struct Options {
        std::uint32_t connection = 0;
        std::uint32_t peer = 0;
        std::uint16_t channel = 0;
        bool verify = false;
        std::size_t send_bytes = 0;
        std::size_t receive_bytes = 0;
        std::uint8_t* shared = nullptr;  // payload of all lanes; null: this lane has its own
    };

    GlooLane(Options options, ::gloo::transport::Context& context, GlooReports& reports);
    GlooLane(const GlooLane&) = delete;
    GlooLane& operator=(const GlooLane&) = delete;
    ~GlooLane();

    // Before `start`: exchange something of one size, at most `kGreetingBytes`. Throw what Gloo throws.
    static constexpr std::size_t kGreetingBytes = 96;
    void offer(const void* greeting, std::size_t bytes);
    bool await(void* greeting, std::size_t bytes, std::chrono::milliseconds timeout);

    void start();
    void send(const Frame& frame);
    // False: a credit was waiting and now says this.
    bool send_credit(std::uint64_t messages);

  private:
    using Buffer = std::unique_ptr<::gloo::transport::UnboundBuffer>;

    void send_all();
    void receive_all();
    bool send_frame(const Frame& frame);
    void lose(Code code, const std::string& text);

    const Options options_;
    GlooReports& reports_;
    std::vector<std::uint8_t> own_;
    std::uint8_t* outgoing_;
    std::uint8_t* incoming_;
    Frame head_out_;
    Frame head_in_;
    std::array<std::uint8_t, kGreetingBytes> greeting_out_{};
    std::array<std::uint8_t, kGreetingBytes> greeting_in_{};
    Buffer head_out_buffer_, head_in_buffer_, out_buffer_, in_buffer_, greeting_out_buffer_,
        greeting_in_buffer_;

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    std::optional<Frame> next_;
    std::optional<std::uint64_t> credit_;
    std::thread sender_;
    std::thread receiver_;
};

}  // namespace genie
