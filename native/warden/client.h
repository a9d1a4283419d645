// Requests to a warden: through its socket while it lives, from its log after it has ended; and the undo
// itself where both of its processes were killed.
#pragma once

#include <string>

namespace genie::warden {

// Prints the reply, one JSON line. The exit code: 0, or 1 with the reason on standard error.
int request(const std::string& dir, const std::string& words);

}  // namespace genie::warden
