// The transports of this executable, by name. Which ones it has is decided where it is linked
// (CMakeLists.txt).
#pragma once

#include <memory>
#include <string>

#include "runner.h"

namespace genie {

// The runner of the program's transport. Throws Failure: this executable lacks it, or it cannot run here.
std::unique_ptr<Runner> make_runner(const RankContext& context);

// Whether a rank over this transport may have a table of descriptors to itself. Not where its library keeps
// some for the whole process.
bool may_own_files(const std::string& transport);

// "tcp, verbs": for --version and for errors.
std::string transport_names();

}  // namespace genie
