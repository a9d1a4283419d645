// genie-agent: one on each host. Dials the controller, proves itself, runs the ranks it is given, reports,
// leaves.
//
//     genie-agent run --control unix:PATH|tcp:HOST:PORT --host NAME [--pace FILE]
//                                                             (the run's token, 32 bytes, on stdin)
//     genie-agent pace get --file FILE                        how fast the host computes, as JSON
//     genie-agent pace set --file FILE --milli N
//
// Exit codes: 0 after BYE, 1 when the controller went away or was false, 2 for wrong usage.
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "control.h"
#include "pace.h"
#include "transports.h"
#ifdef GENIE_WITH_OFI
#include "ofi_endpoint.h"
#endif
#ifdef GENIE_WITH_VERBS
#include "verbs_device.h"
#endif

#ifndef GENIE_VERSION
#define GENIE_VERSION "0"
#endif

namespace genie {
namespace {

constexpr const char* kUsage =
    "usage: genie-agent run --control unix:PATH|tcp:HOST:PORT --host NAME [--pace FILE]\n"
    "       genie-agent pace get --file FILE\n"
    "       genie-agent pace set --file FILE --milli N\n"
    "       genie-agent verbs list\n"
    "       genie-agent ofi list\n"
    "       genie-agent --version\n"
    "The run's token, 32 bytes, is read from standard input. HOST is an IPv4 address.\n"
    "FILE holds how long compute takes, in thousandths of the plan: 1000 is as planned, 2000 twice as long,\n"
    "100 to 1000000. It is made with 1000 where missing. Ranks look when a compute operator starts.\n";

class Usage : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Argument {
    std::string_view name;
    std::string* value;
    bool needed = true;
};

void parse(int argc, char** argv, int first, std::initializer_list<Argument> known) {
    for (int i = first; i < argc; i += 2) {
        const std::string_view name = argv[i];
        const auto* const found =
            std::find_if(known.begin(), known.end(), [&](const Argument& one) { return one.name == name; });
        if (found == known.end()) throw Usage("unknown argument '" + std::string(name) + "'");
        if (i + 1 == argc || *argv[i + 1] == '\0')
            throw Usage("argument " + std::string(name) + " needs a value");
        *found->value = argv[i + 1];
    }
    for (const Argument& one : known) {
        if (one.needed && one.value->empty()) throw Usage(std::string(one.name) + " is missing");
    }
}

Token read_token() {
    Token token;
    std::size_t have = 0;
    while (have < token.size()) {
        const ssize_t count = ::read(STDIN_FILENO, token.data() + have, token.size() - have);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            throw ControlError("expected the run's token, 32 bytes, on standard input, found " +
                               std::to_string(have));
        }
        have += static_cast<std::size_t>(count);
    }
    return token;
}

Descriptor dial_unix(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        throw Usage("a Unix socket's path has 1 to " + std::to_string(sizeof address.sun_path - 1) +
                    " bytes: " + path);
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid() ||
        ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        throw ControlError(with_reason("cannot reach the controller at unix:" + path, errno));
    }
    return socket;
}

// A controller that has not acknowledged anything for so long is gone: its host died, or the way to it.
constexpr int kSilentSeconds = 15;

// Lets the kernel end the connection then; the end of the connection ends the agent.
void end_when_silent(int fd) {
    const auto set = [fd](int level, int option, int value) {
        if (::setsockopt(fd, level, option, &value, sizeof value) != 0) {
            throw ControlError(with_reason("cannot watch the connection to the controller", errno));
        }
    };
    set(IPPROTO_TCP, TCP_KEEPIDLE, kSilentSeconds / 3);
    set(IPPROTO_TCP, TCP_KEEPINTVL, kSilentSeconds / 3);
    set(IPPROTO_TCP, TCP_KEEPCNT, 2);
    set(IPPROTO_TCP, TCP_USER_TIMEOUT, kSilentSeconds * 1000);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_NODELAY, 1);  // frames are short, and the controller times its pings
}

Descriptor dial_tcp(const std::string& where) {
    const std::size_t colon = where.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    const std::string host = where.substr(0, colon == std::string::npos ? 0 : colon);
    if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
        throw Usage("expected tcp:HOST:PORT with an IPv4 address, found tcp:" + where);
    }
    char* end = nullptr;
    const unsigned long port = std::strtoul(where.c_str() + colon + 1, &end, 10);
    if (*end != '\0' || port == 0 || port > 65535)
        throw Usage("expected a port from 1 to 65535, found tcp:" + where);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.valid() ||
        ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        throw ControlError(with_reason("cannot reach the controller at tcp:" + where, errno));
    }
    end_when_silent(socket.get());
    return socket;
}

Descriptor dial(const std::string& control) {
    if (control.starts_with("unix:")) return dial_unix(control.substr(5));
    if (control.starts_with("tcp:")) return dial_tcp(control.substr(4));
    throw Usage("expected --control unix:PATH or tcp:HOST:PORT, found " + control);
}

// One write a line, so that lines of several threads do not mix.
void log_line(const std::string& text) {
    const std::string line = "genie-agent: " + text + "\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;  // nobody is left to tell
}

void prepare_process() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::signal(SIGPIPE, SIG_IGN);
    // Small: all memory comes from one arena, and what a program's parsing freed goes back.
    ::mallopt(M_ARENA_MAX, 1);
    ::mallopt(M_TRIM_THRESHOLD, 64 << 10);
    ::mallopt(M_MMAP_THRESHOLD, 64 << 10);
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &files);
    }
}

int run(int argc, char** argv) {
    std::string control;
    std::string host;
    std::string pace_path;
    parse(argc, argv, 2, {{"--control", &control}, {"--host", &host}, {"--pace", &pace_path, false}});
    prepare_process();
    const Token token = read_token();
    std::optional<PaceFile> pace;
    if (!pace_path.empty()) {
        pace.emplace(PaceFile::open_or_make(pace_path));
        pace->forget_counts();
        const std::uint32_t milli = pace->stretch_milli().value_or(0);
        if (milli != kPlannedMilli) log_line("pace " + std::to_string(milli) + " found in " + pace_path);
    }
    Agent agent(dial(control), host, token, log_line, true, pace ? &*pace : nullptr);
    try {
        agent.serve();
    } catch (const ControlError& error) {
        // No waiting for ranks: whoever was to hear of them is gone. What they committed is in their files.
        log_line(error.what());
        ::_exit(1);
    }
    return 0;
}

void print(const PaceFile& pace) {
    const PacePage& page = pace.page();
    std::printf("{\"stretch_milli\": %" PRIu32 ", \"changes\": %" PRIu64 ", \"stretched_ops\": %" PRIu64
                ", \"added_ns\": %" PRId64 "}\n",
                pace.stretch_milli().value_or(0), page.changes.load(), page.stretched_ops.load(),
                page.added_ns.load());
}

int get_pace(int argc, char** argv) {
    std::string path;
    parse(argc, argv, 3, {{"--file", &path}});
    const PaceFile pace = PaceFile::open(path);
    if (!pace.stretch_milli()) throw Failure(Code::kInternal, "pace file " + path + " is damaged");
    print(pace);
    return 0;
}

int set_pace(int argc, char** argv) {
    std::string path;
    std::string text;
    parse(argc, argv, 3, {{"--file", &path}, {"--milli", &text}});
    std::uint32_t milli = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), milli);
    if (error != std::errc{} || end != text.data() + text.size() || milli < kLeastMilli || milli > kMostMilli)
        throw Usage("expected --milli from " + std::to_string(kLeastMilli) + " to " +
                    std::to_string(kMostMilli) + ", found '" + text + "'");
    PaceFile pace = PaceFile::open_or_make(path);
    pace.set(milli);
    print(pace);
    return 0;
}

// The RDMA devices of this host and what a run would use of them, as JSON.
int list_verbs() {
#ifdef GENIE_WITH_VERBS
    std::printf("%s\n", devices_json(verbs_library(), list_devices(verbs_library())).c_str());
    return 0;
#else
    throw Failure(
        Code::kTransport,
        "this agent was built without RDMA: expected genie-agent-dl, built where libibverbs-dev is");
#endif
}

// What this host's libfabric offers, as JSON.
int list_ofi() {
#ifdef GENIE_WITH_OFI
    std::printf("%s\n", ofi_json().c_str());
    return 0;
#else
    throw Failure(
        Code::kTransport,
        "this agent was built without libfabric: expected genie-agent-dl, built where libfabric-dev is");
#endif
}

}  // namespace
}  // namespace genie

int main(int argc, char** argv) {
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "--version") {
        std::printf("genie-agent %s, control protocol %u, transports %s\n", GENIE_VERSION,
                    unsigned{genie::kControlVersion}, genie::transport_names().c_str());
        return 0;
    }
    if (command == "--help" || command == "-h") {
        std::fputs(genie::kUsage, stdout);
        return 0;
    }
    try {
        const std::string_view verb = argc > 2 ? argv[2] : "";
        if (command == "run") return genie::run(argc, argv);
        if (command == "pace" && verb == "get") return genie::get_pace(argc, argv);
        if (command == "pace" && verb == "set") return genie::set_pace(argc, argv);
        if (command == "verbs" && verb == "list") return genie::list_verbs();
        if (command == "ofi" && verb == "list") return genie::list_ofi();
        if (command.empty()) throw genie::Usage("a command is missing");
        throw genie::Usage("unknown command '" + std::string(command) +
                           (argc > 2 ? " " + std::string(verb) : "") + "'");
    } catch (const genie::Usage& usage) {
        std::fprintf(stderr, "genie-agent: %s\n%s", usage.what(), genie::kUsage);
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie-agent: %s\n", error.what());
        return 1;
    }
}
