// The second dead-man's switch, where systemd runs the host: a timer that calls `genie-warden revert` a few
// seconds after the first one should have. It outlives kill -9 of both processes of the warden.
#pragma once

#include <string>

#include "command.h"
#include "spec.h"

namespace genie::warden {

struct Backup {
    std::string unit;   // "" if there is none
    std::string error;  // why it could not be armed
};

// None where systemd does not run this host, or where it would run commands elsewhere than this process does.
Backup arm_backup(const Spec& spec, const std::string& dir, Slot& slot);

// "" or what went wrong.
std::string stop_backup(const std::string& unit, Slot& slot);

}  // namespace genie::warden
