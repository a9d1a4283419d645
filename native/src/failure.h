// Why a rank could not go on: what goes into a FAILED frame (docs/formats.md §4) and into a person's
// terminal.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace genie {

constexpr std::uint32_t kNone = 0xffffffff;

enum class Code : std::uint32_t {
    kNone = 0,
    kPeerClosed = 1,
    kStall = 2,
    kSizeMismatch = 3,
    kProtocol = 4,
    kOutOfMemory = 5,
    kConnect = 6,
    kBadPayload = 7,
    kInternal = 8,
    kAborted = 9,
    kTransport = 10,
};

struct FailureReport {
    Code code = Code::kNone;
    std::uint32_t op = kNone;
    std::uint32_t iteration = 0;  // kNone: of none
    std::uint32_t peer = kNone;
    std::uint32_t call_id = kNone;
    std::uint64_t waited_ns = 0;
    std::string text;
};

// Thrown outside the hot path: while a rank is set up.
class Failure : public std::runtime_error {
  public:
    Failure(Code code, const std::string& text, std::uint32_t peer = kNone)
        : std::runtime_error(text), code_(code), peer_(peer) {}

    Code code() const { return code_; }
    FailureReport report() const {
        FailureReport report;
        report.code = code_;
        report.peer = peer_;
        report.text = what();
        return report;
    }

  private:
    Code code_;
    std::uint32_t peer_;
};

// "what: reason of error number".
inline std::string with_reason(const std::string& what, int error) {
    char buffer[128];
    return what + ": " + ::strerror_r(error, buffer, sizeof buffer);
}

[[noreturn]] inline void fail_errno(Code code, const std::string& what, std::uint32_t peer = kNone) {
    throw Failure(code, with_reason(what, errno), peer);
}

}  // namespace genie
