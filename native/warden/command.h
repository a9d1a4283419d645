// Runs one command and waits for it: an argv, never a shell. For the worker, for the guardian in its stead,
// and for `revert` where no warden lives.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "clock.h"
#include "spec.h"

namespace genie::warden {

// Shared by worker and guardian, so that the guardian can end a command whose worker was killed beneath it.
struct Slot {
    std::atomic<pid_t> group{0};
    std::atomic<int> exec_error{0};
    std::atomic<bool> over{false};  // the warden has ended in order: the folder may be another's by now
};

// In memory that a fork shares.
Slot* make_slot();

struct Outcome {
    Nanos began_ns = 0;
    Nanos done_ns = 0;
    int exit_code = -1;
    int signal = 0;
    int exec_error = 0;
    bool timed_out = false;
    bool cut = false;  // there was more of `out`
    std::string out;   // the first 64 KiB
    std::string err;   // the last 2 KiB

    bool ok() const { return exit_code == 0; }
};

// Blocks SIGCHLD but for the waits of run_command(), ignores SIGPIPE and SIGHUP. Once a process, before all
// else here.
void prepare_for_commands();

// This process runs before all others, if the kernel lets it, and so do its commands where sessions share the
// processor: an edge must not wait for the load that it is to disturb. What a command leaves behind in a
// session of its own is as any other process.
void go_first();

// PATH with /usr/sbin:/sbin at its end.
void extend_path();

// Kills the command at `deadline` with all of its process group.
Outcome run_command(const Argv& argv, Nanos deadline, Slot& slot);

// Kills the command that a dead worker left in `slot`, and waits until it is gone.
void end_leftover(Slot& slot);

}  // namespace genie::warden
