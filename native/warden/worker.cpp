#include "worker.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>

#include "backup.h"
#include "failure.h"
#include "host_lock.h"
#include "reply.h"
#include "undo.h"

namespace genie::warden {
namespace {

constexpr Nanos kNever = INT64_MAX;
constexpr Nanos kLead = 100 * kMillisecond;  // a window's intent reaches the disk this long before the window
constexpr Nanos kGiveUp = 60 * kSecond;      // after the time limit
constexpr Nanos kDoLimit = 60 * kSecond;
constexpr Nanos kCheckLimit = 5 * kSecond;
constexpr Nanos kClientLimit = 5 * kSecond;
constexpr Nanos kFarewell = 2 * kSecond;
constexpr std::size_t kMostRequest = 256;
constexpr std::size_t kMostClients = 32;
// A window is checked once more shortly before its end, for what was counted in it; one that is shorter only
// once.
constexpr Nanos kLastCheck = 60'000'000;
constexpr Nanos kLeastCheckedTwice = 200'000'000;
constexpr std::int64_t kMostLog = 16 << 20;  // beyond it the outputs of checks are left out
constexpr std::array<Nanos, 5> kBackoff{200 * kMillisecond, 500 * kMillisecond, kSecond, 2 * kSecond,
                                        5 * kSecond};

volatile sig_atomic_t told_to_end = 0;

void remember_signal(int number) { told_to_end = number; }

std::string network() {
    std::array<char, 64> text;
    const ssize_t length = ::readlink("/proc/self/ns/net", text.data(), text.size());
    return length < 0 ? "" : std::string(text.data(), static_cast<std::size_t>(length));
}

bool same_user(int socket) {
    ucred peer{};
    socklen_t size = sizeof peer;
    return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

}  // namespace

Worker::Worker(const Home& home, const Descriptor& host_lock, const Spec& spec, Descriptor listener, Log log,
               Slot& slot, std::string backup_unit)
    : home_(home),
      host_lock_(host_lock),
      spec_(spec),
      listener_(std::move(listener)),
      log_(std::move(log)),
      slot_(slot),
      unit_(std::move(backup_unit)) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    go_first();
}

void Worker::arm(const std::string& backup_error) {
    // SIGTERM and SIGINT mean what `revert` means. They wait while a command runs.
    sigset_t ending;
    ::sigemptyset(&ending);
    struct sigaction action {};
    action.sa_handler = remember_signal;
    for (const int number : {SIGTERM, SIGINT}) {
        ::sigaddset(&ending, number);
        ::sigaction(number, &action, nullptr);
    }
    ::sigprocmask(SIG_BLOCK, &ending, nullptr);
    ttl_end_ = mono_ns() + spec_.ttl;
    Event event("armed");
    event.add("run", spec_.run).add("fault", spec_.fault).add("pid", ::getpid());
    event.add("guardian_pid", ::getppid()).add("ttl_ns", spec_.ttl).add("ttl_end_mono_ns", ttl_end_);
    event.add("nice", ::getpriority(PRIO_PROCESS, 0));
    event.add("network", network()).add("backup", unit_).add("backup_error", backup_error);
    log_.append(event, Durable::kYes);
}

void Worker::take_over(const Facts& facts, pid_t killed, int wait_status) {
    orphaned_ = true;
    ended_ = facts.ended;
    if (ended_) return;
    state_ = facts.state;
    ttl_end_ = facts.ttl_end;
    may_be_applied_ = facts.may_be_applied;
    if (facts.window >= 0) {
        next_ = Edges{facts.window, 0, 0};
        announced_ = true;
    }
    Event event("guardian");
    event.add("killed_pid", killed);
    event.add("signal", WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
    event.add("rc", WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1);
    note(event, Durable::kYes);
    // The controller may be in the middle of its own do: then what it does after this undo is only undone at
    // the time limit, so the watch goes on. Windows are the warden's own, none of them opens after this.
    if (spec_.window.kind == WindowKind::kWhole && may_be_applied_)
        request_undo();
    else
        end_by("guardian");
}

void Worker::run() {
    while (!ended_) step();
}

void Worker::step() {
    const Nanos now = mono_ns();
    if (told_to_end != 0 && ended_by_.empty()) {
        end_by(told_to_end == SIGTERM ? "SIGTERM" : "SIGINT");
    } else if (disarm_) {
        Event event("disarmed");
        if (open_) event.add("open_window", next_->index);
        end(event, "disarmed");
    } else if (revert_) {
        revert_ = false;
        end_by(ended_by_.empty() ? "revert" : ended_by_);
    } else if (now >= ttl_end_ && ended_by_ != "ttl") {
        fire();
    } else if (undo_ && now >= undo_->next_try) {
        try_undo();
    } else if (open_ && !undo_ && next_->closes != 0 && now >= next_->closes) {
        request_undo();
    } else if (open_ && !undo_ && now >= pending_.later) {
        run_later();
    } else if (open_ && !undo_ && now >= pending_.last_check) {
        pending_.last_check = kNever;
        run_checks(next_->index);
    } else if (next_ && !open_ && !announced_ && !undo_ && now >= next_->opens - kLead) {
        announce_window();
    } else if (next_ && !open_ && announced_ && !undo_ && now >= next_->opens) {
        open_window();
    } else {
        wait();
    }
}

// ---- the change
// -----------------------------------------------------------------------------------------------------

void Worker::fire() {
    fired_ = true;
    note(Event("fired").add("ttl_end_mono_ns", ttl_end_).flag("may_be_applied", may_be_applied_),
         Durable::kYes);
    end_by("ttl");
}

void Worker::end_by(const std::string& whom) {
    ended_by_ = whom;
    if (may_be_applied_)
        request_undo();
    else
        end(Event("reverted").add("by", whom).flag("ran", false), fired_ ? "fired" : "reverted");
}

void Worker::announce_window() {
    Event event("opening");
    event.add("i", next_->index).add("planned_mono_ns", next_->opens);
    if (!log_error_.empty() || !note(event, Durable::kYes)) {
        // Without its intent on disk a change must not begin, nor after the log has lost what would prove it.
        failed_ = true;
        state_ = "failed";
        next_.reset();
        return;
    }
    announced_ = true;
    may_be_applied_ = true;
    state_ = "opening";
}

std::string Worker::open_window() {
    const std::int64_t index = next_->index;
    const Nanos began = mono_ns();
    for (std::size_t number = 0; number < spec_.apply.size(); number++) {
        const Argv& argv = spec_.apply[number];
        const Outcome outcome = run_command(argv, std::min(mono_ns() + kDoLimit, ttl_end_), slot_);
        if (outcome.ok()) continue;
        note(failed_event("do", number, argv, outcome), Durable::kYes);
        failed_ = true;
        request_undo();
        return "do " + argv.front() + ": " + reason(outcome);
    }
    const Nanos done = mono_ns();
    open_ = true;
    state_ = "open";
    Event event("opened");
    event.add("i", index).add("planned_mono_ns", next_->opens);
    event.add("began_mono_ns", began).add("done_mono_ns", done);
    note(event, Durable::kNo);
    pending_ = {};
    if (!spec_.later.empty()) pending_.later = done + spec_.later_after;
    if (next_->closes - done >= kLeastCheckedTwice) pending_.last_check = next_->closes - kLastCheck;
    // A told window is checked after its answer.
    if (spec_.window.kind != WindowKind::kTold) run_checks(index);
    return {};
}

void Worker::run_checks(std::int64_t index) {
    // The end of the window goes before the end of a check.
    const Nanos end = std::min(next_->closes == 0 ? kNever : next_->closes, ttl_end_);
    for (std::size_t number = 0; number < spec_.check.size(); number++) {
        const Argv& argv = spec_.check[number];
        const Outcome outcome = run_command(argv, std::min(mono_ns() + kCheckLimit, end), slot_);
        if (!outcome.ok()) {
            note(failed_event("check", number, argv, outcome), Durable::kNo);
            continue;
        }
        Event event("checked");
        event.add("i", index).add("number", static_cast<std::int64_t>(number));
        event.add("began_mono_ns", outcome.began_ns).add("done_mono_ns", outcome.done_ns);
        const bool dropped = log_.size() > kMostLog;
        event.flag("cut", outcome.cut).flag("dropped", dropped);
        event.add("stdout", dropped ? std::string_view() : std::string_view(outcome.out));
        note(event, Durable::kNo);
    }
}

void Worker::run_later() {
    pending_.later = kNever;
    const Nanos began = mono_ns();
    for (std::size_t number = 0; number < spec_.later.size(); number++) {
        const Argv& argv = spec_.later[number];
        const Outcome outcome = run_command(argv, std::min(mono_ns() + kDoLimit, ttl_end_), slot_);
        if (outcome.ok()) continue;
        note(failed_event("later", number, argv, outcome), Durable::kYes);
        failed_ = true;
        return request_undo();
    }
    Event event("later");
    event.add("i", next_->index).add("began_mono_ns", began).add("done_mono_ns", mono_ns());
    note(event, Durable::kNo);
}

void Worker::request_undo() {
    if (!undo_) undo_ = Undo{};
    undo_->next_try = 0;
    state_ = "undoing";
}

void Worker::try_undo() {
    const UndoResult result = run_undo(spec_, slot_, [&](const Event& event) { note(event, Durable::kNo); });
    if (result.error.empty()) {
        undo_.reset();
        after_undo(result.began_ns, result.done_ns);
        return;
    }
    const Nanos now = mono_ns();
    if (now >= ttl_end_ + kGiveUp) {
        end(Event("abandoned").add("error", result.error), "abandoned");
        return;
    }
    undo_->next_try = now + kBackoff[std::min(undo_->tries, kBackoff.size() - 1)];
    undo_->tries++;
    const std::string error = result.error + "; the warden goes on trying until 60 s after the time limit";
    answer_all(Awaits::kClosed, error);
    answer_all(Awaits::kEnd, error);
}

void Worker::after_undo(Nanos began_ns, Nanos done_ns) {
    if (announced_) {
        Event event("closed");
        event.add("i", next_->index).add("planned_mono_ns", next_->closes);
        event.add("began_mono_ns", began_ns).add("done_mono_ns", done_ns);
        // Lost with the machine, it only means one more undo; an fsync here could delay the next window.
        note(event.flag("was_open", open_), Durable::kNo);
        announced_ = open_ = false;
        may_be_applied_ = false;
    }
    if (!ended_by_.empty()) {
        may_be_applied_ = false;
        Event event("reverted");
        event.add("by", ended_by_).flag("ran", true);
        event.add("began_mono_ns", began_ns).add("done_mono_ns", done_ns);
        end(event, fired_ ? "fired" : "reverted");
        return;
    }
    if (orphaned_) {
        note(
            Event("undone").add("by", "guardian").add("began_mono_ns", began_ns).add("done_mono_ns", done_ns),
            Durable::kYes);
        state_ = "changing";
        return;
    }
    state_ = failed_ ? "failed" : "closed";
    plan_next();
    answer_all(Awaits::kClosed, "");
}

void Worker::plan_next() {
    const std::int64_t from = next_ ? next_->index + 1 : 0;
    next_.reset();
    if (failed_ || !origin_ || spec_.window.kind == WindowKind::kTold) return;
    next_ = next_window(spec_.window, *origin_, from, mono_ns());
    const std::int64_t missed = (next_ ? next_->index : window_count(spec_.window)) - from;
    if (missed > 0) note(Event("missed").add("i", from).add("windows", missed), Durable::kNo);
}

void Worker::end(const Event& last, const std::string& state) {
    note(last, Durable::kYes);
    const auto said = stop_backup(unit_, slot_);
    if (!said.empty()) note(Event("backup_left").add("error", said), Durable::kNo);
    state_ = state;
    ended_ = true;
    // Whoever connects from now on reads the log instead.
    home_.remove("socket");
    listener_.reset();
    for (auto& client : clients_) {
        if (client.awaits == Awaits::kEnd)
            compose(client, state_ == "abandoned" ? "the undo failed until 60 s after the time limit" : "",
                    true);
        else if (client.awaits == Awaits::kClosed)
            compose(client, "the warden has ended", false);
    }
    // Before the answers: whoever got one may arm the next warden here, or on this host.
    slot_.over.store(true);
    unlock_host(host_lock_);
    home_.release();
    flush_clients();
}

bool Worker::note(const Event& event, Durable durable) {
    try {
        log_.append(event, durable);
        return true;
    } catch (const Failure& error) {
        // A full disk must not keep the undo from running.
        log_error_ = error.what();
        return false;
    }
}

// ---- requests
// -------------------------------------------------------------------------------------------------------

Nanos Worker::next_deadline() const {
    Nanos deadline = ended_by_ == "ttl" ? kNever : ttl_end_;
    if (undo_)
        deadline = std::min(deadline, undo_->next_try);
    else if (open_)
        deadline = std::min(
            {deadline, next_->closes == 0 ? kNever : next_->closes, pending_.later, pending_.last_check});
    else if (next_ && !open_)
        deadline = std::min(deadline, announced_ ? next_->opens : next_->opens - kLead);
    for (const auto& client : clients_) deadline = std::min(deadline, client.until);
    return deadline;
}

void Worker::wait() {
    drop_clients();
    std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
    for (const auto& client : clients_) {
        const int events = !client.out.empty() ? POLLOUT : client.awaits == Awaits::kRequest ? POLLIN : 0;
        watched.push_back({client.socket.get(), static_cast<short>(events), 0});
    }
    sigset_t mask;
    ::sigprocmask(SIG_SETMASK, nullptr, &mask);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT}) ::sigdelset(&mask, number);
    const timespec left = until(next_deadline());
    const int ready = ::ppoll(watched.data(), watched.size(), &left, &mask);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (ready <= 0) return;
    auto happened = watched.begin() + 1;
    for (auto& client : clients_) {
        const short events = (happened++)->revents;
        if (events & POLLOUT)
            send(client);
        else if (events & POLLIN)
            serve(client);
        else if (events != 0)
            client.socket.reset();
    }
    if (watched.front().revents != 0) accept_clients();
}

void Worker::drop_clients() {
    const Nanos now = mono_ns();
    clients_.remove_if([now](const Client& client) {
        const bool answered = client.awaits == Awaits::kNothing && client.out.empty();
        return answered || client.until <= now || !client.socket.valid();
    });
}

void Worker::accept_clients() {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid() || clients_.size() >= kMostClients) return;
    const bool known = same_user(socket.get());
    clients_.push_back({std::move(socket), "", "", 0, mono_ns() + kClientLimit, Awaits::kRequest});
    if (!known) answer(clients_.back(), "this warden answers its own user only", false);
}

void Worker::serve(Client& client) {
    std::array<char, kMostRequest> chunk;
    const ssize_t count = ::recv(client.socket.get(), chunk.data(), chunk.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
        client.socket.reset();
        return;
    }
    client.in.append(chunk.data(), static_cast<std::size_t>(count));
    const auto end = client.in.find('\n');
    if (end == std::string::npos) {
        if (client.in.size() >= kMostRequest) answer(client, "the request is too long", false);
        return;
    }
    const std::string request = client.in.substr(0, end);
    handle(client, request);
}

void Worker::handle(Client& client, std::string_view request) {
    const auto kind = spec_.window.kind;
    if (request == "status") {
        answer(client, "", true);
    } else if (request == "disarm") {
        client.awaits = Awaits::kEnd;
        client.until = kNever;
        disarm_ = true;
    } else if (request == "revert") {
        client.awaits = Awaits::kEnd;
        client.until = kNever;
        revert_ = true;
    } else if (!ended_by_.empty()) {
        answer(client, "the warden is ending (" + ended_by_ + ")", false);
    } else if (request == "mark-applied") {
        if (kind != WindowKind::kWhole) return answer(client, "mark-applied is for a whole window", false);
        if (orphaned_) return answer(client, "the warden was killed and its change undone", false);
        if (!may_be_applied_) {
            if (!note(Event("changing"), Durable::kYes)) return answer(client, log_error_, false);
            may_be_applied_ = true;
            state_ = "changing";
        }
        answer(client, "", false);
    } else if (request.starts_with("start ")) {
        answer(client, start(request.substr(6)), false);
    } else if (request == "open" || request == "close") {
        if (kind != WindowKind::kTold)
            return answer(client, std::string(request) + " is for a told window", false);
        if (failed_) return answer(client, "an earlier do failed, no window is opened any more", false);
        if (undo_) return answer(client, "the undo is still being tried", false);
        if (request == "close") {
            if (!open_) return answer(client, "", false);
            run_checks(next_->index);
            next_->closes = mono_ns();
            client.awaits = Awaits::kClosed;
            client.until = kNever;
            request_undo();
            return;
        }
        if (open_) return answer(client, "", false);
        next_ = Edges{told_windows_++, mono_ns(), 0};
        announce_window();
        const std::string error = announced_ ? open_window() : log_error_;
        answer(client, error, false);
        if (error.empty()) run_checks(next_->index);
    } else {
        answer(client, "no request '" + std::string(request) + "'", false);
    }
}

std::string Worker::start(std::string_view origin) {
    Nanos value = 0;
    const auto [end, error] = std::from_chars(origin.data(), origin.data() + origin.size(), value);
    if (error != std::errc{} || end != origin.data() + origin.size() || value < 0 || value > kNever / 4)
        return "expected nanoseconds of CLOCK_MONOTONIC, found '" + std::string(origin) + "'";
    if (spec_.window.kind != WindowKind::kTimed && spec_.window.kind != WindowKind::kPeriodic)
        return "start is for timed and periodic windows";
    if (origin_ && *origin_ != value) return "already started, at " + std::to_string(*origin_);
    if (origin_) return {};
    if (!note(Event("started").add("origin_mono_ns", value), Durable::kYes)) return log_error_;
    origin_ = value;
    plan_next();
    return {};
}

void Worker::compose(Client& client, const std::string& error, bool with_log) {
    Reply reply{error, state_, !ended_, may_be_applied_, ttl_end_, log_error_, std::nullopt};
    if (with_log) reply.log = read_log(home_.folder());
    client.out = reply.line();
    client.awaits = Awaits::kNothing;
    client.until = mono_ns() + kClientLimit;
}

void Worker::answer(Client& client, const std::string& error, bool with_log) {
    compose(client, error, with_log);
    send(client);
}

void Worker::answer_all(Awaits awaiting, const std::string& error) {
    for (auto& client : clients_)
        if (client.awaits == awaiting) answer(client, error, awaiting == Awaits::kEnd);
}

void Worker::send(Client& client) {
    while (!client.out.empty()) {
        const ssize_t count = ::send(client.socket.get(), client.out.data() + client.sent,
                                     client.out.size() - client.sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            if (errno != EAGAIN) client.out.clear();
            return;
        }
        client.sent += static_cast<std::size_t>(count);
        if (client.sent == client.out.size()) client.out.clear();
    }
}

void Worker::flush_clients() {
    const Nanos deadline = mono_ns() + kFarewell;
    for (auto& client : clients_) {
        while (!client.out.empty() && mono_ns() < deadline) {
            pollfd watched{client.socket.get(), POLLOUT, 0};
            const timespec left = until(deadline);
            if (::ppoll(&watched, 1, &left, nullptr) > 0) send(client);
        }
    }
    clients_.clear();
}

}  // namespace genie::warden
