// The errors of genie-warden: a sentence for standard error. Failure is exit code 1, Usage is 2.
#pragma once

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace genie::warden {

class Failure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class Usage : public Failure {
  public:
    using Failure::Failure;
};

// "what: reason of errno".
[[noreturn]] inline void fail_errno(const std::string& what) {
    throw Failure(what + ": " + std::strerror(errno));
}

}  // namespace genie::warden
