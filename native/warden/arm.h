// `genie-warden arm`: checks everything, then leaves two processes behind, a guardian and its worker.
#pragma once

#include <string>

namespace genie::warden {

// The spec is read from standard input. Prints one JSON line and returns 0 once the worker is ready; throws
// Failure for a refusal, with nothing left behind. `lock` is "" for none.
int arm(const std::string& dir, const std::string& lock);

}  // namespace genie::warden
