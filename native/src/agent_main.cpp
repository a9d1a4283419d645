// genie-agent: one on each host. Dials the controller, proves itself, runs the ranks it is given, reports,
// leaves.
//
//     genie-agent run --control unix:PATH|tcp:HOST:PORT --host NAME     (the run's token, 32 bytes, on stdin)
//
// Exit codes: 0 after BYE, 1 when the controller went away or was false, 2 for wrong usage.
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "control.h"

#ifndef GENIE_VERSION
#define GENIE_VERSION "0"
#endif

namespace genie {
namespace {

constexpr const char* kUsage =
    "usage: genie-agent run --control unix:PATH|tcp:HOST:PORT --host NAME\n"
    "       genie-agent --version\n"
    "The run's token, 32 bytes, is read from standard input. HOST is an IPv4 address.\n";

class Usage : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Arguments {
    std::string control;
    std::string host;
};

Arguments parse(int argc, char** argv) {
    Arguments arguments;
    for (int i = 2; i < argc; i += 2) {
        const std::string_view name = argv[i];
        std::string* value = name == "--control" ? &arguments.control
                             : name == "--host"  ? &arguments.host
                                                 : nullptr;
        if (value == nullptr) throw Usage("unknown argument '" + std::string(name) + "'");
        if (i + 1 == argc) throw Usage("argument " + std::string(name) + " needs a value");
        *value = argv[i + 1];
    }
    if (arguments.control.empty()) throw Usage("--control is missing");
    if (arguments.host.empty()) throw Usage("--host is missing");
    return arguments;
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

int run(const Arguments& arguments) {
    prepare_process();
    const Token token = read_token();
    Agent agent(dial(arguments.control), arguments.host, token, log_line, true);
    try {
        agent.serve();
    } catch (const ControlError& error) {
        // No waiting for ranks: whoever was to hear of them is gone. What they committed is in their files.
        log_line(error.what());
        ::_exit(1);
    }
    return 0;
}

}  // namespace
}  // namespace genie

int main(int argc, char** argv) {
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "--version") {
        std::printf("genie-agent %s, control protocol %u\n", GENIE_VERSION, unsigned{genie::kControlVersion});
        return 0;
    }
    if (command == "--help" || command == "-h") {
        std::fputs(genie::kUsage, stdout);
        return 0;
    }
    try {
        if (command != "run") {
            throw genie::Usage(command.empty() ? "a command is missing"
                                               : "unknown command '" + std::string(command) + "'");
        }
        return genie::run(genie::parse(argc, argv));
    } catch (const genie::Usage& usage) {
        std::fprintf(stderr, "genie-agent: %s\n%s", usage.what(), genie::kUsage);
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie-agent: %s\n", error.what());
        return 1;
    }
}
