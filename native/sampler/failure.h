// The one error type of genie-port: a sentence for standard error, and exit code 1.
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace genie {

class Failure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// "what: reason of errno".
[[noreturn]] inline void fail_errno(const std::string& what) {
    throw Failure(what + ": " + std::strerror(errno));
}

}  // namespace genie
