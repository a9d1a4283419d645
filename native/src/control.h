// The agent's side of the control protocol (docs/formats.md §4): frames, the proof, and the loop that passes
// the controller's words to the ranks and theirs to it. One thread, the agent's main one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "descriptor.h"
#include "rank_thread.h"
#include "sockets.h"

namespace genie {

constexpr std::uint16_t kControlVersion = 3;
constexpr std::size_t kMostCardBytes = 1 << 19;

enum class ControlType : std::uint16_t {
    kHello = 1,
    kChallenge = 2,
    kProof = 3,
    kProgram = 4,
    kListening = 5,
    kConnect = 6,
    kConnected = 7,
    kPing = 8,
    kPong = 9,
    kStart = 10,
    kProgress = 11,
    kDone = 12,
    kFailed = 13,
    kAbort = 14,
    kBye = 15,
};

// The conversation cannot go on; the agent says why and exits with 1.
class ControlError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Builds one frame.
class FrameWriter {
  public:
    explicit FrameWriter(ControlType type);
    template <class Number>
    FrameWriter& put(Number value) {
        static_assert(std::is_integral_v<Number>);
        return raw({reinterpret_cast<const std::uint8_t*>(&value), sizeof value});
    }
    FrameWriter& raw(std::span<const std::uint8_t> bytes);
    FrameWriter& text(std::string_view value);
    std::vector<std::uint8_t> finish();

  private:
    std::vector<std::uint8_t> bytes_;
};

// Reads the fields of one payload; throws ControlError if it is shorter.
class FieldReader {
  public:
    explicit FieldReader(std::span<const std::uint8_t> payload) : left_(payload) {}
    template <class Number>
    Number take() {
        static_assert(std::is_integral_v<Number>);
        Number value;
        const auto bytes = raw(sizeof value);
        std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::uint8_t*>(&value));
        return value;
    }
    std::span<const std::uint8_t> raw(std::size_t size);
    std::string text();

  private:
    std::span<const std::uint8_t> left_;
};

class Agent final : public Observer {
  public:
    // `own_files`: each rank's thread has its own table of descriptors (a copy of all that are open now).
    // `pace`, if any, is the host's and outlives the agent.
    Agent(Descriptor socket, std::string host, const Token& token, Log log, bool own_files,
          PaceFile* pace = nullptr);
    Agent(const Agent&) = delete;
    Agent& operator=(const Agent&) = delete;
    ~Agent();

    // Serves the controller until it says BYE. Throws ControlError at end of file or a false controller.
    void serve();

    void listening(std::uint32_t rank, const Opened& opened) override;
    void connected(std::uint32_t rank) override;
    void failed(std::uint32_t rank, const FailureReport& report) override;
    void done(std::uint32_t rank, Ending ending, const std::string& message) override;

  private:
    void hello();
    void read_controller();
    void handle(ControlType type, std::span<const std::uint8_t> payload);
    void prove(FieldReader& fields);
    void load(FieldReader& fields);
    void connect(FieldReader& fields);
    void send(const std::vector<std::uint8_t>& frame);
    void post(std::vector<std::uint8_t> frame);
    void send_posted();
    void send_progress();
    void write_out();

    Descriptor socket_;
    const std::string host_;
    const Token token_;
    const Log log_;
    const bool own_files_;
    PaceFile* const pace_;
    std::vector<std::uint8_t> nonce_;
    bool proven_ = false;
    bool running_ = false;
    bool bye_ = false;
    std::vector<std::uint8_t> incoming_;
    std::vector<std::uint8_t> outgoing_;
    std::vector<std::unique_ptr<RankThread>> ranks_;

    Descriptor posted_fd_;
    std::mutex posted_mutex_;
    std::deque<std::vector<std::uint8_t>> posted_;  // by the ranks' threads, for the controller
};

}  // namespace genie
