#include "arm.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "backup.h"
#include "command.h"
#include "failure.h"
#include "home.h"
#include "host_lock.h"
#include "log.h"
#include "spec.h"
#include "text.h"
#include "worker.h"

namespace genie::warden {
namespace {

// What the caller left open (ssh's pipes, say) must not live as long as the warden.
void close_inherited() {
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) fail_errno("/dev/null");
    DIR* const folder = ::opendir("/proc/self/fd");
    if (folder == nullptr) fail_errno("/proc/self/fd");
    std::vector<int> open;
    while (const dirent* entry = ::readdir(folder)) {
        const int fd = std::atoi(entry->d_name);
        if (fd > STDERR_FILENO && fd != ::dirfd(folder)) open.push_back(fd);
    }
    ::closedir(folder);
    for (const int fd : open) ::close(fd);
}

std::string read_spec() {
    std::string text;
    std::array<char, 65536> chunk;
    while (true) {
        const ssize_t count = ::read(STDIN_FILENO, chunk.data(), chunk.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail_errno("read the spec");
        if (count == 0) return text;
        text.append(chunk.data(), static_cast<std::size_t>(count));
        if (text.size() > kMostSpecBytes) return text;  // refused by the parser
    }
}

void refuse_unfinished(const Home& home) {
    const Facts facts = read_facts(read_log(home.folder()));
    if (facts.may_be_applied)
        throw Failure("an earlier warden was killed in " + home.path() + " (" + facts.state +
                      "), its change may be in place: run genie-warden revert --dir " + home.path() +
                      " first");
}

// The files of a warden that is not to be after all, and the log of the one before.
void take_back(const Home& home) {
    for (const char* name : {"spec", "log", "socket", "output"}) home.remove(name);
    ::renameat(home.folder(), "log.before", home.folder(), "log");
}

void leave_terminal(const Home& home) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    const int output =
        ::openat(home.folder(), "output", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW, 0600);
    if (nothing < 0 || output < 0) fail_errno("open output");
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    ::close(nothing);
    ::close(output);
    if (::chdir("/") != 0) fail_errno("chdir /");
}

struct Parts {
    Home& home;
    const Descriptor& host_lock;
    const Spec& spec;
    Descriptor listener;
    Log log;
    Slot& slot;
    Backup backup;
};

[[noreturn]] void work(Parts& parts, Descriptor ready) {
    Worker worker(parts.home, parts.host_lock, parts.spec, std::move(parts.listener), std::move(parts.log),
                  parts.slot, parts.backup.unit);
    worker.arm(parts.backup.error);
    std::string line = "{\"pid\":" + std::to_string(::getpid()) +
                       ",\"guardian_pid\":" + std::to_string(::getppid()) +
                       ",\"state\":\"armed\",\"mono_ns\":" + std::to_string(mono_ns()) +
                       ",\"real_ns\":" + std::to_string(real_ns()) +
                       ",\"ttl_end_mono_ns\":" + std::to_string(worker.ttl_end()) + ",\"backup\":";
    append_json(line, parts.backup.unit);
    line += ",\"backup_error\":";
    append_json(line, parts.backup.error);
    write_all(ready.get(), line + "}\n", "tell that the warden is ready");
    ready.reset();
    worker.run();
    ::_exit(0);
}

[[noreturn]] void guard(Parts& parts, Descriptor ready) {
    // Orphans of the worker come to this process, so that it can wait for them.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1UL);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) ::signal(number, SIG_IGN);
    const pid_t worker = ::fork();
    if (worker < 0) fail_errno("fork");
    if (worker == 0) work(parts, std::move(ready));
    ready.reset();
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::wait(&status)) != worker)
        if (ended < 0 && errno != EINTR) fail_errno("wait for the worker");
    if (parts.slot.over.load() || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) ::_exit(0);
    const Facts facts = read_facts(read_log(parts.home.folder()));
    if (facts.state.empty()) ::_exit(1);  // it never was armed, and said so
    end_leftover(parts.slot);
    Worker successor(parts.home, parts.host_lock, parts.spec, std::move(parts.listener),
                     Log::open(parts.home.folder()), parts.slot, parts.backup.unit);
    successor.take_over(facts, worker, status);
    successor.run();
    ::_exit(0);
}

// In the process that is to be the daemon. A failure goes to `ready` while somebody listens there, else to
// DIR/output.
[[noreturn]] void become_daemon(Parts& parts, Descriptor ready) {
    const int told = ::dup(ready.get());
    ::fcntl(told, F_SETFD, FD_CLOEXEC);
    try {
        ::setsid();
        const pid_t guardian = ::fork();
        if (guardian < 0) fail_errno("fork");
        if (guardian > 0) ::_exit(0);
        leave_terminal(parts.home);
        guard(parts, std::move(ready));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie-warden: %s\n", error.what());
        const std::string text = error.what();
        if (::write(told, text.data(), text.size()) < 0) ::_exit(3);
        ::_exit(2);
    }
}

std::string run_daemon(Parts& parts) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
    Descriptor listens(ends[0]), ready(ends[1]);
    const pid_t child = ::fork();
    if (child < 0) fail_errno("fork");
    if (child == 0) {
        listens.reset();
        become_daemon(parts, std::move(ready));
    }
    ready.reset();
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    std::string said;
    std::array<char, 4096> chunk;
    while (said.find('\n') == std::string::npos) {
        const ssize_t count = ::read(listens.get(), chunk.data(), chunk.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        said.append(chunk.data(), static_cast<std::size_t>(count));
    }
    if (said.starts_with("{") && said.back() == '\n') return said;
    throw Failure("the warden ended before it was ready" + (said.empty() ? "" : ": " + said));
}

}  // namespace

int arm(const std::string& dir, const std::string& lock) {
    close_inherited();
    prepare_for_commands();
    extend_path();
    ::umask(077);
    const std::string text = read_spec();
    const Spec spec = parse_spec(text);
    Home home = Home::make(dir);
    bool stored = false;
    Slot* const slot = make_slot();
    Backup backup;
    try {
        if (!home.take())
            throw Failure("a warden is armed in " + home.path() + " already, pid " +
                          std::to_string(read_facts(read_log(home.folder())).pid));
        refuse_unfinished(home);
        Descriptor host;
        if (!lock.empty()) host = lock_host(lock, spec.run, real_ns() + spec.ttl);
        Log log = Log::create(home.folder());
        stored = true;
        home.store("spec", text);
        Descriptor listener = home.listen();
        backup = arm_backup(spec, home.path(), *slot);
        Parts parts{home, host, spec, std::move(listener), std::move(log), *slot, backup};
        const std::string ready = run_daemon(parts);
        std::fwrite(ready.data(), 1, ready.size(), stdout);
        // The warden lives whether or not anybody hears of it: its time limit sees to that.
        return std::fflush(stdout) == 0 ? 0 : 1;
    } catch (const Failure&) {
        stop_backup(backup.unit, *slot);
        if (stored) take_back(home);
        home.undo_make();
        throw;
    }
}

}  // namespace genie::warden
