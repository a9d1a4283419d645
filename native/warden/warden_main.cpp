// genie-warden: the dead-man's switch and the timer of one fault on one node. See usage() and docs/warden.md.
//
// Armed before anything is changed. It runs the undo when its time limit passes, when its worker is killed,
// or when it is told to; and the do and undo of timed windows, on time. Commands are argv lists, never a
// shell's.
#include <cstdio>
#include <string>
#include <string_view>

#include "arm.h"
#include "client.h"
#include "failure.h"
#include "text.h"

namespace genie::warden {
namespace {

constexpr std::string_view kUsage =
    "usage: genie-warden arm --dir DIR [--lock FILE] < spec\n"
    "       genie-warden start --dir DIR --at-mono-ns T\n"
    "       genie-warden open | close | mark-applied | disarm | revert | status --dir DIR\n"
    "Each prints one JSON line. Exit codes: 0, 1 for a refusal or a failure, 2 for wrong usage.\n";

struct Arguments {
    std::string dir, lock, at;
};

Arguments parse(int argc, char** argv) {
    Arguments arguments;
    for (int index = 2; index < argc; index += 2) {
        const std::string_view name = argv[index];
        std::string* value = name == "--dir"          ? &arguments.dir
                             : name == "--lock"       ? &arguments.lock
                             : name == "--at-mono-ns" ? &arguments.at
                                                      : nullptr;
        if (value == nullptr) throw Usage("unknown argument '" + std::string(name) + "'");
        if (index + 1 == argc || *argv[index + 1] == '\0')
            throw Usage("argument " + std::string(name) + " needs a value");
        if (!value->empty()) throw Usage("argument " + std::string(name) + " is given twice");
        *value = argv[index + 1];
    }
    if (arguments.dir.empty()) throw Usage("--dir is missing");
    return arguments;
}

int run(int argc, char** argv) {
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "--help") {
        std::fwrite(kUsage.data(), 1, kUsage.size(), stdout);
        return 0;
    }
    bool known = command == "arm" || command == "start";
    for (const char* plain : {"open", "close", "mark-applied", "disarm", "revert", "status"})
        known = known || command == plain;
    if (!known) throw Usage("no command '" + command + "'");
    const Arguments arguments = parse(argc, argv);
    if (!arguments.lock.empty() && command != "arm") throw Usage("--lock is for arm");
    if (arguments.at.empty() != (command != "start"))
        throw Usage("start needs --at-mono-ns, which is for start only");
    if (command == "arm") return arm(arguments.dir, arguments.lock);
    return request(arguments.dir, command == "start" ? "start " + arguments.at : command);
}

}  // namespace
}  // namespace genie::warden

int main(int argc, char** argv) {
    using namespace genie::warden;
    try {
        return run(argc, argv);
    } catch (const Usage& error) {
        std::fprintf(stderr, "genie-warden: %s\n%.*s", printable(error.what()).c_str(),
                     static_cast<int>(kUsage.size()), kUsage.data());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "genie-warden: %s\n", printable(error.what()).c_str());
        return 1;
    }
}
