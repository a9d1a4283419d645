// The lock of a host: one run at a time changes it. A flock, so it ends with its last holder however that
// ends; the file's text says who and until when.
#pragma once

#include <string>

#include "clock.h"
#include "descriptor.h"

namespace genie::warden {

// Held as long as the descriptor and those inherited from it are open; several wardens of one run share it.
// Throws Failure "host is locked by run X until TIME (N s)".
Descriptor lock_host(const std::string& path, const std::string& run, Nanos end_real_ns);

// Lets go at once for all that inherited it.
void unlock_host(const Descriptor& lock);

}  // namespace genie::warden
