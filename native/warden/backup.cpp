#include "backup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "undo.h"

namespace genie::warden {
namespace {

constexpr Nanos kAfterTtl = 5 * kSecond;
constexpr Nanos kLimit = 20 * kSecond;

bool same_namespace(const char* kind) {
    struct stat own {
    }, first{};
    return ::stat((std::string("/proc/self/ns/") + kind).c_str(), &own) == 0 &&
           ::stat((std::string("/proc/1/ns/") + kind).c_str(), &first) == 0 && own.st_ino == first.st_ino;
}

bool systemd_runs_here() {
    // For tests: a folder that stands for systemd's own.
    if (const char* marker = std::getenv("GENIE_WARDEN_SYSTEMD")) return ::access(marker, F_OK) == 0;
    // systemd's commands run in the namespaces of PID 1: from within a fabric the undo would hit the host.
    return ::access("/run/systemd/system", F_OK) == 0 && same_namespace("net") && same_namespace("mnt") &&
           same_namespace("pid");
}

std::string own_path() {
    std::array<char, 4096> path;
    const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
    return length < 0 ? "genie-warden" : std::string(path.data(), static_cast<std::size_t>(length));
}

}  // namespace

Backup arm_backup(const Spec& spec, const std::string& dir, Slot& slot) {
    if (!systemd_runs_here()) return {};
    const std::string unit = "genie-warden-" + spec.run + "-" + spec.fault;
    const Nanos milliseconds = (spec.ttl + kAfterTtl) / kMillisecond;
    const char* path = std::getenv("PATH");
    // Without an accuracy of its own a timer may be a minute late.
    const Argv argv{"systemd-run",
                    "--quiet",
                    "--collect",
                    "--unit=" + unit,
                    "--on-active=" + std::to_string(milliseconds) + "ms",
                    "--timer-property=AccuracySec=100ms",
                    std::string("--setenv=PATH=") + (path != nullptr ? path : ""),
                    own_path(),
                    "revert",
                    "--dir",
                    dir};
    const Outcome outcome = run_command(argv, mono_ns() + kLimit, slot);
    if (outcome.ok()) return {unit, ""};
    return {"", "systemd-run: " + reason(outcome)};
}

std::string stop_backup(const std::string& unit, Slot& slot) {
    if (unit.empty()) return {};
    // The timer, not the service: this may be the service.
    const Outcome outcome =
        run_command({"systemctl", "stop", "--quiet", unit + ".timer"}, mono_ns() + kLimit, slot);
    return outcome.ok() ? "" : "systemctl stop " + unit + ".timer: " + reason(outcome);
}

}  // namespace genie::warden
