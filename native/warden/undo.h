// The undo of a change, and how a failed command is told.
#pragma once

#include <string>

#include "command.h"
#include "log.h"
#include "spec.h"

namespace genie::warden {

// "exit code 2: last line of its standard error".
std::string reason(const Outcome& outcome);

// The event "failed"; `phase` is "do", "undo" or "check".
Event failed_event(std::string_view phase, std::size_t number, const Argv& argv, const Outcome& outcome);

struct UndoResult {
    Nanos began_ns = 0;
    Nanos done_ns = 0;
    std::string error;  // of the first command that failed; "" if none did
};

// Runs every command of the undo, also after one has failed: what can be put back is put back. `note` is
// given the failures.
template <typename Note>
UndoResult run_undo(const Spec& spec, Slot& slot, Note note) {
    constexpr Nanos kLimit = 120 * kSecond;
    UndoResult result;
    result.began_ns = mono_ns();
    for (std::size_t number = 0; number < spec.undo.size(); number++) {
        const Argv& argv = spec.undo[number];
        const Outcome outcome = run_command(argv, mono_ns() + kLimit, slot);
        if (outcome.ok()) continue;
        if (result.error.empty()) result.error = "undo " + argv.front() + ": " + reason(outcome);
        note(failed_event("undo", number, argv, outcome));
    }
    result.done_ns = mono_ns();
    return result;
}

}  // namespace genie::warden
