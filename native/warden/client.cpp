#include "client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <optional>

#include "backup.h"
#include "command.h"
#include "failure.h"
#include "home.h"
#include "log.h"
#include "reply.h"
#include "undo.h"

namespace genie::warden {
namespace {

constexpr Nanos kPatience = 150 * kSecond;  // longer than one undo may take
constexpr Nanos kBetween = 10 * kMillisecond;

// The reply of a living warden; nothing if there is none, or if it ended before it answered.
std::optional<std::string> ask(const Home& home, const std::string& words, Nanos deadline) {
    const Descriptor socket = home.connect();
    if (!socket.valid()) return std::nullopt;
    const std::string line = words + "\n";
    if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
        return std::nullopt;
    std::string reply;
    std::array<char, 65536> chunk;
    while (true) {
        pollfd watched{socket.get(), POLLIN, 0};
        const timespec left = until(deadline);
        const int ready = ::ppoll(&watched, 1, &left, nullptr);
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0) throw Failure("the warden in " + home.path() + " does not answer");
        const ssize_t count = ::recv(socket.get(), chunk.data(), chunk.size(), 0);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return std::nullopt;
        reply.append(chunk.data(), static_cast<std::size_t>(count));
        if (reply.back() == '\n') return reply;
    }
}

std::string network() {
    std::array<char, 64> text;
    const ssize_t length = ::readlink("/proc/self/ns/net", text.data(), text.size());
    return length < 0 ? "" : std::string(text.data(), static_cast<std::size_t>(length));
}

Reply reply_from_log(const Home& home, bool alive) {
    Reply reply;
    reply.log = read_log(home.folder());
    const Facts facts = read_facts(*reply.log);
    reply.state = facts.state;
    reply.alive = alive;
    reply.may_be_applied = facts.may_be_applied;
    reply.ttl_end = facts.ttl_end;
    if (facts.state.empty()) reply.error = "no warden was ever armed in " + home.path();
    return reply;
}

// The undo in the stead of a warden that was killed. "" or what went wrong.
std::string revert_for_the_dead(const Home& home, const Facts& facts) {
    const Spec spec = parse_spec(read_file(home.folder(), "spec", kMostSpecBytes));
    Log log = Log::open(home.folder());
    Event last("reverted");
    last.add("by", "revert without a warden").flag("ran", facts.may_be_applied);
    if (facts.may_be_applied) {
        if (!facts.network.empty() && facts.network != network())
            return "the change was made in network namespace " + facts.network + ", this is " + network() +
                   ": run this there";
        extend_path();
        std::string log_error;
        const auto note = [&](const Event& event) {
            try {
                log.append(event, Durable::kNo);
            } catch (const Failure& error) {
                log_error = error.what();
            }
        };
        Slot* const slot = make_slot();
        UndoResult result = run_undo(spec, *slot, note);
        if (!result.error.empty()) result = run_undo(spec, *slot, note);
        if (!result.error.empty()) return result.error;
        if (facts.window >= 0) {
            Event closed("closed");
            closed.add("i", facts.window).add("planned_mono_ns", std::int64_t{0});
            closed.add("began_mono_ns", result.began_ns).add("done_mono_ns", result.done_ns);
            note(closed.flag("was_open", facts.state == "open"));
        }
        last.add("began_mono_ns", result.began_ns).add("done_mono_ns", result.done_ns);
    }
    log.append(last, Durable::kYes);
    return {};
}

// This process holds `alive`: there is no warden, and none comes.
Reply settle(const Home& home, const std::string& words) {
    const Facts facts = read_facts(read_log(home.folder()));
    std::string error;
    if (words != "revert" && words != "disarm") {
        error = "no warden lives in " + home.path() + ", it is " +
                (facts.state.empty() ? "not armed" : facts.state);
    } else if (!facts.ended && !facts.state.empty()) {
        if (words == "disarm")
            Log::open(home.folder())
                .append(Event("disarmed").add("by", "disarm without a warden"), Durable::kYes);
        else
            error = revert_for_the_dead(home, facts);
        if (error.empty()) stop_backup(facts.unit, *make_slot());
    }
    Reply reply = reply_from_log(home, false);
    if (!error.empty()) reply.error = error;
    return reply;
}

std::string exchange(Home& home, const std::string& words) {
    const Nanos deadline = mono_ns() + kPatience;
    while (true) {
        if (auto reply = ask(home, words, deadline)) return *reply;
        // Whoever holds `alive` without answering is about to answer, or to end, or undoes as guardian.
        const bool mine = home.take();
        if (words == "status") return reply_from_log(home, !mine).line();
        if (mine) return settle(home, words).line();
        if (mono_ns() >= deadline)
            throw Failure("a warden holds " + home.path() + " but does not answer: its undo may hang");
        sleep_for(kBetween);
    }
}

}  // namespace

int request(const std::string& dir, const std::string& words) {
    prepare_for_commands();
    Home home(dir);
    const std::string reply = exchange(home, words);
    std::fwrite(reply.data(), 1, reply.size(), stdout);
    if (std::fflush(stdout) != 0) fail_errno("write the reply");
    if (reply.starts_with("{\"ok\":true")) return 0;
    // `error` is the reply's second field, an escaped JSON string.
    const auto begins = reply.find("\"error\":\"") + 9;
    std::string error;
    for (auto at = begins; reply[at] != '"'; at++) {
        if (reply[at] == '\\' && (reply[at + 1] == '"' || reply[at + 1] == '\\')) at++;
        error += reply[at];
    }
    throw Failure(error);
}

}  // namespace genie::warden
