#include "command.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>

#include "descriptor.h"
#include "failure.h"

namespace genie::warden {
namespace {

constexpr std::size_t kMostOut = 64 * 1024;
constexpr std::size_t kMostErr = 2 * 1024;
constexpr Nanos kDeathTime = kSecond;  // a killed process in an uninterruptible wait may take for ever

void ignore_signal(int) {}

struct Pipe {
    Descriptor reads, writes;
    Pipe() {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail_errno("pipe");
        reads = Descriptor(ends[0]);
        writes = Descriptor(ends[1]);
        ::fcntl(ends[1], F_SETFL, 0);  // the command's end blocks, as it expects
    }
};

// The child of a vfork: only system calls, no memory of its own but `slot`, which is meant to be seen.
[[noreturn]] void become(char* const* words, int in, int out, int err, pid_t parent, Slot& slot) {
    ::setpgid(0, 0);
    slot.group.store(::getpid());
    // Were the parent dead by now, nobody would have seen the line above: then this command must not begin.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::dup2(in, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2, SIGCHLD})
        ::sigaction(number, &usual, nullptr);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execvp(words[0], words);
    slot.exec_error.store(errno);
    ::_exit(127);
}

pid_t spawn(char* const* words, int in, int out, int err, Slot& slot) {
    const pid_t parent = ::getpid();
    // Not fork: an undo must not fail because there is no memory for a copy. What the child may do is told
    // above.
    const pid_t child = ::vfork();  // NOLINT(clang-analyzer-security.insecureAPI.vfork)
    if (child == 0) become(words, in, out, err, parent, slot);  // NOLINT(clang-analyzer-unix.Vfork)
    return child;
}

// Reads what there is, but not for ever where there always is more; whether the pipe is still open.
template <typename Keep>
bool drain(int pipe, Keep keep) {
    std::array<char, 16384> chunk;
    for (int turn = 0; turn < 16; turn++) {
        const ssize_t count = ::read(pipe, chunk.data(), chunk.size());
        if (count > 0)
            keep(std::string_view(chunk.data(), static_cast<std::size_t>(count)));
        else if (count == 0)
            return false;
        else if (errno != EINTR)
            return true;
    }
    return true;
}

bool has_folder(std::string_view path, std::string_view folder) {
    while (!path.empty()) {
        const auto end = std::min(path.find(':'), path.size());
        if (path.substr(0, end) == folder) return true;
        path.remove_prefix(std::min(end + 1, path.size()));
    }
    return false;
}

sigset_t mask_without_child() {
    sigset_t mask;
    ::sigprocmask(SIG_SETMASK, nullptr, &mask);
    ::sigdelset(&mask, SIGCHLD);
    return mask;
}

Outcome run_or_throw(const Argv& argv, Nanos deadline, Slot& slot) {
    std::vector<char*> words;
    for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    Pipe out, err;
    const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing.valid()) fail_errno("/dev/null");

    Outcome outcome;
    slot.exec_error.store(0);
    outcome.began_ns = mono_ns();
    const pid_t child = spawn(words.data(), nothing.get(), out.writes.get(), err.writes.get(), slot);
    if (child < 0) {
        outcome.exec_error = errno;
        outcome.done_ns = mono_ns();
        return outcome;
    }
    out.writes.reset();
    err.writes.reset();

    const sigset_t waiting = mask_without_child();
    std::array<pollfd, 2> watched{{{out.reads.get(), POLLIN, 0}, {err.reads.get(), POLLIN, 0}}};
    const auto take = [&] {
        const bool more_out = drain(out.reads.get(), [&](std::string_view text) {
            const std::size_t room = kMostOut - outcome.out.size();
            outcome.cut = outcome.cut || text.size() > room;
            outcome.out += text.substr(0, room);
        });
        const bool more_err = drain(err.reads.get(), [&](std::string_view text) {
            outcome.err += text;
            if (outcome.err.size() > kMostErr) outcome.err.erase(0, outcome.err.size() - kMostErr);
        });
        if (!more_out) watched[0].fd = -1;
        if (!more_err) watched[1].fd = -1;
    };
    int status = 0;
    bool gone = false;
    while (!gone) {
        // Not the end of its output but its own end counts: it may leave a process behind that keeps the
        // pipes.
        gone = ::waitpid(child, &status, WNOHANG) == child;
        if (gone) break;
        const Nanos now = mono_ns();
        if (now >= deadline) {
            if (outcome.timed_out) break;
            outcome.timed_out = true;
            ::kill(-child, SIGKILL);
            deadline = now + kDeathTime;
        }
        const timespec left = until(deadline);
        ::ppoll(watched.data(), watched.size(), &left, &waiting);
        take();
    }
    outcome.done_ns = mono_ns();
    take();
    slot.group.store(0);
    outcome.exec_error = slot.exec_error.load();
    if (gone && WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
    if (gone && WIFEXITED(status) && outcome.exec_error == 0 && !outcome.timed_out)
        outcome.exit_code = WEXITSTATUS(status);
    return outcome;
}

}  // namespace

void go_first() {
    // Of the kernel's struct sched_attr, as its first version was.
    struct {
        std::uint32_t size = 48;
        std::uint32_t policy = SCHED_OTHER;
        std::uint64_t flags = 0x01;  // SCHED_FLAG_RESET_ON_FORK
        std::int32_t nice = -20;
        std::uint32_t priority = 0;
        std::uint64_t runtime = 0, deadline = 0, period = 0;
    } wanted;
    static_assert(sizeof wanted == 48);
    ::syscall(SYS_sched_setattr, 0, &wanted, 0U);
    // Where each session shares the processor as one, it is the session that has to go first.
    const Descriptor session(::open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC));
    if (session.valid() && ::write(session.get(), "-20", 3) < 0) return;
}

Slot* make_slot() {
    void* page = ::mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) fail_errno("mmap");
    return new (page) Slot;
}

void prepare_for_commands() {
    struct sigaction action {};
    action.sa_handler = ignore_signal;
    action.sa_flags = SA_NOCLDSTOP;
    ::sigaction(SIGCHLD, &action, nullptr);
    action.sa_flags = 0;
    action.sa_handler = SIG_IGN;
    // SIGXFSZ: a log that may not grow is an error to be told, not the end of the warden.
    for (const int number : {SIGPIPE, SIGHUP, SIGXFSZ}) ::sigaction(number, &action, nullptr);
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child, nullptr);
}

void extend_path() {
    const char* path = std::getenv("PATH");
    std::string longer = path != nullptr && *path != '\0' ? path : "/usr/local/bin:/usr/bin:/bin";
    for (const char* folder : {"/usr/sbin", "/sbin"})
        if (!has_folder(longer, folder)) longer.append(":").append(folder);
    ::setenv("PATH", longer.c_str(), 1);
}

Outcome run_command(const Argv& argv, Nanos deadline, Slot& slot) {
    try {
        return run_or_throw(argv, deadline, slot);
    } catch (const Failure&) {
        // No descriptor left, say. A command that could not be run has failed; an undo is then tried again.
        Outcome outcome;
        outcome.exec_error = errno;
        outcome.began_ns = outcome.done_ns = mono_ns();
        return outcome;
    }
}

void end_leftover(Slot& slot) {
    const pid_t group = slot.group.exchange(0);
    if (group <= 0) return;
    ::kill(-group, SIGKILL);
    const sigset_t waiting = mask_without_child();
    const Nanos deadline = mono_ns() + kDeathTime;
    while (mono_ns() < deadline) {
        const pid_t ended = ::waitpid(-group, nullptr, WNOHANG);
        if (ended < 0 && errno == ECHILD) return;
        if (ended > 0) continue;
        const timespec left = until(deadline);
        ::ppoll(nullptr, 0, &left, &waiting);
    }
}

}  // namespace genie::warden
