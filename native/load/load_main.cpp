// genie-load: traffic of another tenant, from a real sender. See kUsage for its commands.
//
// Started on a host by the fault incast_cross_traffic. Ends at its time limit, when told to, or with the
// host's namespaces, and leaves only the page that says what it sent.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "failure.h"
#include "sender.h"
#include "state.h"

namespace genie {
namespace {

constexpr std::int64_t kDefaultTtlNs = 3'600'000'000'000;
constexpr std::uint64_t kMostRateBps = 1'000'000'000'000;
constexpr Nanos kPatience = 2'000_ms;  // for a sender to end after SIGTERM, and again after SIGKILL

constexpr std::string_view kUsage =
    "genie-load start --dir DIR --to IP:PORT [--to ...] --rate-bps N --packet-bytes N\n"
    "                 [--on-ns N --off-ns N] [--ttl-ns N] [--source-port P] [--ecn 0|1]\n"
    "genie-load status --dir DIR\n"
    "genie-load stop --dir DIR\n"
    "\n"
    "start sends UDP in the background and returns once the first packet has left; the destinations take "
    "turns.\n"
    "N packet bytes are those of the IP packet, never fragmented; the rate counts them, over all "
    "destinations,\n"
    "and with --on-ns and --off-ns is that within a burst. It ends after --ttl-ns, an hour if not given.\n"
    "stop is no error where nothing runs. All print JSON: what was sent, and what was not and why.\n";

class Usage : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

class Words {
  public:
    Words(int argc, char** argv, std::initializer_list<std::string_view> known) {
        for (int i = 2; i < argc; i += 2) {
            const std::string_view name = argv[i];
            if (std::find(known.begin(), known.end(), name) == known.end())
                throw Usage("unknown argument '" + std::string(name) + "'");
            if (i + 1 == argc) throw Usage("argument " + std::string(name) + " needs a value");
            given_.emplace_back(name, argv[i + 1]);
        }
    }

    std::vector<std::string> all(std::string_view name) const {
        std::vector<std::string> found;
        for (const auto& [key, value] : given_) {
            if (key == name) found.push_back(value);
        }
        return found;
    }

    std::string one(std::string_view name) const {
        const std::vector<std::string> found = all(name);
        if (found.empty() || found.front().empty()) throw Usage(std::string(name) + " is missing");
        if (found.size() > 1) throw Usage(std::string(name) + " is given twice");
        return found.front();
    }

    std::uint64_t number(std::string_view name, std::uint64_t least, std::uint64_t most) const {
        const std::string text = one(name);
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
            throw Usage("expected " + std::string(name) + " from " + std::to_string(least) + " to " +
                        std::to_string(most) + ", found '" + text + "'");
        return value;
    }

    std::uint64_t number_or(std::uint64_t otherwise, std::string_view name, std::uint64_t least,
                            std::uint64_t most) const {
        return all(name).empty() ? otherwise : number(name, least, most);
    }

  private:
    std::vector<std::pair<std::string, std::string>> given_;
};

void parse_destination(const std::string& text, LoadDestination& to) {
    const std::size_t colon = text.rfind(':');
    in_addr address{};
    const std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
    const char* const first = text.c_str() + colon + 1;
    const char* const last = text.c_str() + text.size();
    std::uint16_t port = 0;
    const bool good = ::inet_pton(AF_INET, host.c_str(), &address) == 1;
    if (!good || std::from_chars(first, last, port).ptr != last || port == 0)
        throw Usage("expected --to IPV4:PORT, found '" + text + "'");
    to.ipv4 = ntohl(address.s_addr);
    to.port = port;
    if (to.ipv4 == 0 || to.ipv4 >> 28 >= 0xe)
        throw Usage("expected the address of one host, found '" + text + "'");
}

void parse_plan(const Words& words, LoadPage& plan) {
    constexpr auto kMostNs = static_cast<std::uint64_t>(std::int64_t{1} << 60);
    const std::vector<std::string> to = words.all("--to");
    if (to.empty()) throw Usage("--to is missing");
    if (to.size() > kMostDestinations)
        throw Usage("expected at most " + std::to_string(kMostDestinations) + " times --to");
    for (std::size_t i = 0; i < to.size(); ++i) parse_destination(to[i], plan.to[i]);
    plan.destinations = static_cast<std::uint32_t>(to.size());
    plan.rate_bps = words.number("--rate-bps", 1, kMostRateBps);
    plan.packet_bytes =
        static_cast<std::uint32_t>(words.number("--packet-bytes", kLeastPacketBytes, kMostPacketBytes));
    if (words.all("--on-ns").empty() != words.all("--off-ns").empty())
        throw Usage("--on-ns and --off-ns come together");
    plan.on_ns = static_cast<std::int64_t>(words.number_or(0, "--on-ns", 1, kMostNs));
    plan.off_ns = static_cast<std::int64_t>(words.number_or(0, "--off-ns", 1, kMostNs));
    plan.ttl_ns = static_cast<std::int64_t>(words.number_or(kDefaultTtlNs, "--ttl-ns", 1, kMostNs));
    plan.source_port = static_cast<std::uint32_t>(words.number_or(0, "--source-port", 1, 65'535));
    plan.ecn = static_cast<std::uint32_t>(words.number_or(0, "--ecn", 0, 1));
}

void print(const LoadPage* page, bool running) {
    if (page == nullptr) {
        std::printf(
            "{\"state\": \"%s\", \"ended_by\": \"\", \"starts\": 0, \"packets\": 0, \"bytes\": 0, "
            "\"all_packets\": 0, \"all_bytes\": 0}\n",
            running ? "starting" : "absent");
        return;
    }
    const auto end = static_cast<LoadEnd>(page->end.load());
    const char* const by = running                    ? ""
                           : end == LoadEnd::kTimeUp  ? "ttl"
                           : end == LoadEnd::kStopped ? "stop"
                                                      : "killed";
    const std::uint64_t packets = page->packets.load();
    const std::uint64_t bytes = page->bytes.load();
    std::printf("{\"state\": \"%s\", \"ended_by\": \"%s\", \"pid\": %" PRIu32 ", \"starts\": %" PRIu64
                ", \"rate_bps\": %" PRIu64 ", \"packet_bytes\": %" PRIu32 ", \"ecn\": %" PRIu32
                ", \"source_port\": %" PRIu32 ", \"on_ns\": %" PRId64 ", \"off_ns\": %" PRId64
                ", \"ttl_ns\": %" PRId64 ", \"started_mono_ns\": %" PRId64 ", \"ended_mono_ns\": %" PRId64,
                running ? "sending" : "ended", by, page->pid.load(), page->starts, page->rate_bps,
                page->packet_bytes, page->ecn, page->source_port, page->on_ns, page->off_ns, page->ttl_ns,
                page->started_mono_ns.load(), page->ended_mono_ns.load());
    std::printf(
        ", \"packets\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"blocked\": %" PRIu64
        ", \"errors\": %" PRIu64 ", \"skipped\": %" PRIu64 ", \"last_errno\": %" PRIu32
        ", \"all_packets\": %" PRIu64 ", \"all_bytes\": %" PRIu64 ", \"to\": [",
        packets, bytes, page->refused.load(), page->blocked.load(), page->errors.load(), page->skipped.load(),
        page->last_errno.load(), page->earlier_packets + packets, page->earlier_bytes + bytes);
    for (std::uint32_t i = 0; i < page->destinations; ++i) {
        const LoadDestination& to = page->to[i];
        std::printf("%s{\"address\": \"%u.%u.%u.%u:%u\", \"packets\": %" PRIu64 ", \"errors\": %" PRIu64 "}",
                    i == 0 ? "" : ", ", to.ipv4 >> 24, to.ipv4 >> 16 & 255U, to.ipv4 >> 8 & 255U,
                    to.ipv4 & 255U, unsigned{to.port}, to.packets.load(), to.errors.load());
    }
    std::printf("]}\n");
}

// Nothing of the caller stays open but what is listed: a shell that waits for the end of our output would
// wait for the load's.
void let_go_of_caller(std::vector<int> keep) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
    const auto close_range = [](int first, int last) {
        if (first > last || ::syscall(SYS_close_range, first, last, 0U) == 0) return;
        const auto most = static_cast<int>(::sysconf(_SC_OPEN_MAX));
        for (int fd = first; fd <= std::min(last, most); ++fd) ::close(fd);
    };
    std::sort(keep.begin(), keep.end());
    int next = STDERR_FILENO + 1;
    for (const int fd : keep) {
        close_range(next, fd - 1);
        next = std::max(next, fd + 1);
    }
    close_range(next, std::numeric_limits<int>::max());
    if (::chdir("/") != 0) return;  // keeps a file system busy, and harms nothing else
}

// The sender's life. Its lock goes with it.
void run_sender(Sender& sender, LoadPage& page, const Descriptor& lock, int started) {
    ::setsid();
    std::vector<int> keep = sender.sockets();
    keep.insert(keep.end(), {lock.get(), started});
    let_go_of_caller(std::move(keep));
    sigset_t ours;
    ::sigemptyset(&ours);
    for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&ours, signal);
    ::sigprocmask(SIG_SETMASK, &ours, nullptr);
    ::signal(SIGHUP, SIG_IGN);
    const auto pid = static_cast<std::uint32_t>(::getpid());
    page.start_ticks.store(start_ticks_of(pid));
    page.pid.store(pid);
    sender.run(page, [started] {
        const char yes = 1;
        if (::write(started, &yes, 1) == 1) ::close(started);
    });
}

int start(const Words& words) {
    LoadPage plan{};
    parse_plan(words, plan);
    const std::string folder = words.one("--dir");
    Sender sender(plan);
    std::optional<Descriptor> lock = lock_load(folder, true);
    if (!lock) {
        const MappedPage page = open_load_page(folder);
        throw Failure(Code::kInternal, "a load is running already in " + folder + ", process " +
                                           std::to_string(page ? page->pid.load() : 0));
    }
    const MappedPage page = replace_load_page(folder, plan);
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) fail_errno(Code::kInternal, "cannot make a pipe");
    Descriptor listening(pipe[0]);
    Descriptor started(pipe[1]);
    const pid_t child = ::fork();
    if (child < 0) fail_errno(Code::kInternal, "cannot start a process");
    if (child == 0) {
        run_sender(sender, *page, *lock, started.get());
        ::_exit(0);
    }
    started.reset();
    lock.reset();
    char yes = 0;
    ssize_t count = 0;
    do {
        count = ::read(listening.get(), &yes, 1);
    } while (count < 0 && errno == EINTR);
    if (count != 1) throw Failure(Code::kInternal, "the sender ended before its first packet");
    print(page.get(), true);
    return 0;
}

int status(const Words& words) {
    const std::string folder = words.one("--dir");
    const bool running = load_is_locked(folder);
    print(open_load_page(folder).get(), running);
    return 0;
}

// Asks the sender to end, then ends it. False if the process is not the one that wrote the page.
bool end_sender(const LoadPage& page) {
    const std::uint32_t pid = page.pid.load();
    if (pid == 0) return false;
    const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0U)));
    if (!process.valid()) {
        if (errno == ESRCH) return false;
        fail_errno(Code::kInternal, "cannot get hold of process " + std::to_string(pid));
    }
    // Looked at while held: the number cannot pass to another process in between.
    if (start_ticks_of(pid) != page.start_ticks.load()) return false;
    for (const int signal : {SIGTERM, SIGKILL}) {
        if (::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0U) != 0 && errno != ESRCH)
            fail_errno(Code::kInternal, "cannot signal process " + std::to_string(pid));
        pollfd ended{process.get(), POLLIN, 0};
        if (::poll(&ended, 1, static_cast<int>(kPatience.value / 1'000'000)) > 0) return true;
    }
    throw Failure(Code::kInternal, "process " + std::to_string(pid) + " does not end");
}

int stop(const Words& words) {
    const std::string folder = words.one("--dir");
    // Again while someone holds the lock: a sender that was just being started has no process id yet.
    Nanos until = monotonic_now() + kPatience;
    while (load_is_locked(folder)) {
        const MappedPage page = open_load_page(folder);
        if (page && end_sender(*page)) until = monotonic_now() + kPatience;
        if (monotonic_now() > until)
            throw Failure(Code::kInternal,
                          "the lock of " + folder + " is held, by no sender that could be ended");
        constexpr timespec kMoment{0, 2'000'000};
        ::nanosleep(&kMoment, nullptr);
    }
    print(open_load_page(folder).get(), false);
    return 0;
}

int run(int argc, char** argv) {
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "start") {
        return start(Words(argc, argv,
                           {"--dir", "--to", "--rate-bps", "--packet-bytes", "--on-ns", "--off-ns",
                            "--ttl-ns", "--source-port", "--ecn"}));
    }
    if (command == "status") return status(Words(argc, argv, {"--dir"}));
    if (command == "stop") return stop(Words(argc, argv, {"--dir"}));
    if (command == "--help") {
        std::fwrite(kUsage.data(), 1, kUsage.size(), stdout);
        return 0;
    }
    throw Usage("no command '" + std::string(command) + "'");
}

}  // namespace
}  // namespace genie

int main(int argc, char** argv) {
    try {
        return genie::run(argc, argv);
    } catch (const genie::Usage& error) {
        std::fprintf(stderr, "genie-load: %s\n%.*s", error.what(), static_cast<int>(genie::kUsage.size()),
                     genie::kUsage.data());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie-load: %s\n", error.what());
        return 1;
    }
}
