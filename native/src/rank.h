// One rank: a state machine that walks its program and never blocks.
//
// `advance` does what can be done now and says until when nothing will happen by itself. Operators are kept
// in `Schedule`, running calls in `Instances`. Time comes from `Clock` (`Nanos now()`), bytes go through
// `Transport`:
//
//     bool poll(Sink&, now)                             deliver what has arrived; true if anything happened
//     bool pending()                                    there is more to deliver at once
//     bool busy(connection)                             a frame is on its way out
//     bool send(connection, const Frame&, SendTimes&)   true if handed over whole at once
//     void send_credit(connection, messages)            now or as soon as the connection is free
//     bool drained()                                    nothing is left to hand over
//     uint64_t moved()                                  bytes so far, to tell slow from stuck
//     string unfinished()                               may be missing: of a stall, what it still waits for
//
// `now` of `poll` is that of `advance`: when the driver had found what has arrived.
//
// The driver runs ranks over sockets and the real clock, the simulator over a virtual one. In steady state
// nothing here allocates or locks; every index was checked when the program was parsed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "events.h"
#include "failure.h"
#include "instance.h"
#include "pace.h"
#include "program.h"
#include "schedule.h"
#include "transport.h"
#include "units.h"
#include "waiting.h"

namespace genie {

template <class Clock, class Transport>
class Rank final : public Sink {
  public:
    enum class State { kIdle, kRunning, kDone, kFailed };

    // `pace`, if any, outlives the rank.
    Rank(const Program& program, EventFile& events, Clock& clock, Transport& transport,
         PaceFile* pace = nullptr)
        : program_(program),
          events_(events),
          clock_(clock),
          transport_(transport),
          pace_(pace),
          record_messages_(program.record_messages()),
          window_(program.header.window_messages),
          schedule_(program),
          instances_(program),
          links_(program.connections.size()) {
        touched_.reserve(2 * instances_.most_steps() + 64);
        finished_.reserve(64);
        timers_.reserve(program.lanes.size() + 64);
        if (window_ > 0) {
            for (Link& link : links_) link.unacknowledged.resize(window_);
        }
    }

    void begin(Nanos now) {
        now_ = now;
        last_progress_ = now;
        state_ = State::kRunning;
        begin_iteration();
    }

    // Does what can be done at `now`, at most a few thousand operators of it.
    Wait advance(Nanos now) {
        Wait wait;
        if (state_ != State::kRunning) return wait;
        see(now);
        bool worked = transport_.poll(*this, now);
        worked |= run_timers();
        const int operators = run_ops();
        worked |= operators > 0;
        if (state_ != State::kRunning) return wait;
        if (iteration_ == program_.header.iterations && transport_.drained()) {
            state_ = State::kDone;
            return wait;
        }
        if (worked || transport_.moved() != moved_) {
            moved_ = transport_.moved();
            last_progress_ = now_;
        }
        wait.more = operators == kOpsAtOnce || transport_.pending();
        if (!timers_.empty()) {
            wait.deadline = timers_.front().deadline;
            wait.timer = true;
            return wait;
        }
        // No timer runs, so only a peer can bring progress.
        const Nanos limit =
            saturating_add(last_progress_, {static_cast<std::int64_t>(program_.header.timeout_ns)});
        if (now_ >= limit && !worked) {
            fail_waiting(Code::kStall, "no progress" + unfinished());
        } else {
            wait.deadline = limit;
        }
        return wait;
    }

    void abort(const std::string& reason) {
        if (state_ == State::kRunning) fail_waiting(Code::kAborted, reason);
    }

    State state() const { return state_; }
    bool running() const { return state_ == State::kRunning; }
    const FailureReport& failure() const { return failure_; }
    std::uint32_t iteration() const { return iteration_; }
    std::uint64_t instances_made() const { return instances_.made(); }

    // -- Sink

    bool expect(std::uint32_t connection, std::uint32_t call_id, Nanos now, Frame& frame) override {
        if (!running()) return false;
        see(now);
        Link& link = links_[connection];
        link.header_seen = now;
        frame = {};
        frame.call_id = call_id;
        frame.channel = program_.connections[connection].channel;
        if (link.due == nullptr || program_.calls[link.due->instance->call].call_id != call_id) {
            Port* const port = find_due(connection, frame);
            if (port == nullptr) return false;
            link.due = port;
        }
        const Port& port = *link.due;
        frame.iteration = port.instance->iteration;
        frame.message = due_message(port);
        frame.bytes = due_bytes(link);
        return true;
    }

    void on_wrong_size(std::uint32_t connection, const Frame& frame) override {
        fail_message(Code::kSizeMismatch, connection, frame,
                     "call " + std::to_string(frame.call_id) + ", message " + name_message(frame.message) +
                         " from rank " + std::to_string(program_.connections[connection].peer) +
                         ": expected " + std::to_string(links_[connection].due_bytes) + " bytes, found " +
                         std::to_string(frame.bytes));
    }

    bool on_header(std::uint32_t connection, const Frame& frame, Nanos now) override {
        if (!running()) return false;
        see(now);
        Link& link = links_[connection];
        if (frame.channel != program_.connections[connection].channel) {
            return refuse(connection, frame, "a message of channel " + std::to_string(frame.channel));
        }
        if (link.due == nullptr || link.due->instance->iteration != frame.iteration ||
            program_.calls[link.due->instance->call].call_id != frame.call_id) {
            Port* const port = find_announced(connection, frame);
            if (port == nullptr) return false;
            link.due = port;
        }
        if (frame.message != due_message(*link.due)) {
            return refuse(connection, frame,
                          "message " + name_message(frame.message) + " where message " +
                              name_message(due_message(*link.due)) + " was due");
        }
        link.header_seen = now;
        if (frame.bytes == due_bytes(link)) return true;
        on_wrong_size(connection, frame);
        return false;
    }

    void on_message(std::uint32_t connection, Nanos now) override {
        see(now);
        Link& link = links_[connection];
        Port& port = *link.due;
        Instance& instance = *port.instance;
        const std::uint32_t s = link.due_step;
        StepState& step = instance.steps[s];
        const std::uint64_t bytes = link.due_bytes;
        record_message(EventType::kReceived, instance, connection, bytes, port.recv_cursor, port.recv_message,
                       link.header_seen, link.header_seen, now);
        EventHeader& header = events_.header();
        bytes_received_ += bytes;
        header.bytes_received.store(bytes_received_, std::memory_order_relaxed);
        header.messages_received.store(++messages_received_, std::memory_order_relaxed);
        ++step.arrived;
        const bool last = ++port.recv_message == step.messages;
        if (last) {
            ++port.recv_cursor;
            port.recv_message = 0;
            if (!receives_more(port)) link.due = nullptr;
        }
        ++link.received;
        if (window_ > 0 && (last || link.received - link.credited >= std::max(1U, window_ / 2))) {
            link.credited = link.received;
            transport_.send_credit(connection, link.received);
        }
        advance_step(instance, s);
        propagate();
    }

    void on_sent(std::uint32_t connection, SendTimes times) override {
        see(times.last);
        finish_send(connection, sending_of(*links_[connection].sending), times);
        pump(connection);
        propagate();
    }

    void on_free(std::uint32_t connection) override {
        pump(connection);
        propagate();
    }

    void on_credit(std::uint32_t connection, std::uint64_t messages, Nanos now) override {
        see(now);
        Link& link = links_[connection];
        const std::uint64_t outstanding = link.sent - link.acknowledged;
        if (window_ == 0 || messages < link.acknowledged || messages - link.acknowledged > outstanding) {
            fail_waiting(Code::kProtocol, "credit for messages that were never sent", connection);
            return;
        }
        while (link.acknowledged < messages) {
            const InFlight flown = link.unacknowledged[link.acknowledged % window_];
            ++link.acknowledged;
            message_done(*flown.instance, flown.step);
        }
        pump(connection);
        propagate();
    }

    void on_lost(std::uint32_t connection, Code code, const std::string& reason) override {
        fail_waiting(code, reason, connection);
    }

  private:
    static constexpr int kOpsAtOnce = 4096;

    struct InFlight {
        Instance* instance;
        std::uint32_t step;
    };

    struct Sending {
        std::uint32_t step;
        std::uint64_t bytes;
    };

    struct Link {
        Port* head = nullptr;
        Port* tail = nullptr;
        Port* sending = nullptr;
        bool pumping = false;
        // Where the next message comes in, if it is of the same call as the last; null if none is left there.
        Port* due = nullptr;
        std::uint32_t due_step = 0;
        std::uint64_t due_bytes = 0;
        Nanos header_seen;
        std::uint64_t received = 0, credited = 0;
        std::uint64_t sent = 0, acknowledged = 0;
        std::vector<InFlight> unacknowledged;  // a ring of window_messages
    };

    struct Timer {
        Nanos deadline;
        std::uint32_t op;  // kNone: a local step
        std::uint32_t step;
        Instance* instance;
        friend bool operator<(const Timer& a, const Timer& b) { return a.deadline > b.deadline; }  // min-heap
    };

    void see(Nanos now) { now_ = std::max(now_, now); }

    // -- messages that come in

    // The port of the first iteration in which anything is left to come: a peer may be iterations ahead.
    // Null: there is none, and the rank has failed.
    Port* find_due(std::uint32_t connection, Frame& frame) {
        const std::uint32_t call = program_.find_call(frame.call_id);
        if (call == kNone) {
            frame.iteration = kNone;  // the wire says none, and this rank has none for it
            refuse(connection, frame, "a message of a call this rank takes no part in");
            return nullptr;
        }
        for (frame.iteration = instances_.floor(call); frame.iteration < program_.header.iterations;
             ++frame.iteration) {
            Port* const port = find_port(instances_.find_or_make(call, frame.iteration), connection);
            if (port == nullptr) {
                refuse(connection, frame, "a message from a rank that sends nothing in this call");
                return nullptr;
            }
            if (receives_more(*port)) return port;
        }
        frame.iteration = kNone;
        refuse(connection, frame, "a message of a call that was complete or never will be");
        return nullptr;
    }

    // The port of the iteration that a head names, likewise.
    Port* find_announced(std::uint32_t connection, const Frame& frame) {
        const std::uint32_t call = program_.find_call(frame.call_id);
        const char* wrong = nullptr;
        Port* port = nullptr;
        if (call == kNone) {
            wrong = "a message of a call this rank takes no part in";
        } else if (frame.iteration < instances_.floor(call) ||
                   frame.iteration >= program_.header.iterations) {
            wrong = "a message of a call that was complete or never will be";
        } else if (port = find_port(instances_.find_or_make(call, frame.iteration), connection);
                   port == nullptr) {
            wrong = "a message from a rank that sends nothing in this call";
        } else if (!receives_more(*port)) {
            wrong = "more messages than the call has";
        }
        if (wrong == nullptr) return port;
        refuse(connection, frame, wrong);
        return nullptr;
    }

    // The bytes of the message that is due on a link, which has a port.
    std::uint64_t due_bytes(Link& link) const {
        const Port& port = *link.due;
        const TemplatePlan& plan = *port.instance->plan;
        link.due_step = plan.port_steps[plan.ports[port.index].recv_begin + port.recv_cursor];
        link.due_bytes =
            instances_.message_bytes(*port.instance, port.instance->steps[link.due_step], port.recv_message);
        return link.due_bytes;
    }

    // -- operators

    void begin_iteration() {
        iteration_start_ = now_;
        schedule_.begin_iteration(now_);
    }

    void end_iteration() {
        events_.write({EventType::kIteration, 0, iteration_, kNone, kNone, 0, iteration_start_.value,
                       iteration_start_.value, now_.value, kNone, 0, 0});
        events_.header().iterations_done.store(++iteration_, std::memory_order_relaxed);
    }

    int run_ops() {
        int done = 0;
        for (; done < kOpsAtOnce && running(); ++done) {
            if (!finished_.empty()) {
                finish_instance(*finished_.back());
            } else if (const std::uint32_t op = schedule_.next(now_); op != kNone) {
                start_op(op);
            } else if (iteration_ < program_.header.iterations && schedule_.all_done()) {
                end_iteration();
                if (iteration_ < program_.header.iterations) begin_iteration();
            } else {
                break;
            }
        }
        return done;
    }

    void start_op(std::uint32_t index) {
        const Op& op = program_.ops[index];
        if (op.call != kNone) {
            start_call(op.call);
            return;
        }
        Nanos duration = scaled({op.duration_ns}, program_.header.compute_scale_ppm);
        if (pace_ != nullptr && !pace_->stretch(duration))
            return fail_waiting(Code::kInternal, "the host's pace file is damaged");
        if (duration.value == 0) {
            complete_op(index);
        } else {
            add_timer({saturating_add(now_, duration), index, 0, nullptr});
        }
    }

    void complete_op(std::uint32_t index) {
        const Op& op = program_.ops[index];
        const OpState& state = schedule_.ops()[index];
        see(clock_.now());
        Event event{EventType::kOperator, 0,          iteration_, index, kNone, 0, state.ready.value,
                    state.started.value,  now_.value, kNone,      0,     0};
        if (op.call != kNone) {
            event.bytes = program_.calls[op.call].bytes;
            event.call_id = program_.calls[op.call].call_id;
        }
        events_.write(event);
        events_.header().ops_done.store(++total_ops_done_, std::memory_order_relaxed);
        schedule_.finish(index, now_);
    }

    // -- timers

    void add_timer(const Timer& timer) {
        timers_.push_back(timer);
        std::push_heap(timers_.begin(), timers_.end());
    }

    bool run_timers() {
        if (timers_.empty()) return false;
        see(clock_.now());
        bool any = false;
        while (!timers_.empty() && timers_.front().deadline <= now_ && running()) {
            const Timer timer = timers_.front();
            std::pop_heap(timers_.begin(), timers_.end());
            timers_.pop_back();
            if (timer.op != kNone) {
                complete_op(timer.op);
            } else {
                message_done(*timer.instance, timer.step);
                propagate();
            }
            any = true;
        }
        return any;
    }

    // -- calls

    void start_call(std::uint32_t call_index) {
        Instance& instance = instances_.find_or_make(call_index, iteration_);
        instance.started = true;
        if (instance.steps_left == 0) {
            finished_.push_back(&instance);
            return;
        }
        // Those that need others are looked at when these go on, and receives when a message comes.
        const Step* const steps = program_.steps.data() + instance.plan->step_begin;
        for (std::uint32_t s = 0; s < instance.plan->steps && running(); ++s) {
            if (steps[s].need_begin != steps[s].need_end) continue;
            if (steps[s].kind == StepKind::kRecv && instance.steps[s].arrived == 0) continue;
            advance_step(instance, s);
            propagate();
        }
    }

    void finish_instance(Instance& instance) {
        finished_.pop_back();
        const std::uint32_t op = program_.calls[instance.call].op;
        instances_.finish(instance);
        complete_op(op);
    }

    // -- steps

    // Looks at a step again after something it needs went on, or a message of it arrived.
    void advance_step(Instance& instance, std::uint32_t s) {
        StepState& state = instance.steps[s];
        if (!instance.started || state.complete) return;
        const Step& step = program_.steps[instance.plan->step_begin + s];
        const std::uint32_t before = state.allowed;
        if (before < state.messages)
            state.allowed = instances_.allowed_messages(instance, step, state.messages);
        switch (step.kind) {
            case StepKind::kSend: {
                if (state.allowed == before) return;
                if (record_messages_) {
                    std::fill_n(instance.allowed_at.begin() + state.times_at + before, state.allowed - before,
                                now_);
                }
                const std::uint32_t p = instance.plan->port_of_step[s];
                if (instance.ports[p].send_cursor == instance.plan->ordinal_of_step[s])
                    queue_port(instance.ports[p]);
                return;
            }
            case StepKind::kRecv: {
                const std::uint32_t done = std::min(state.arrived, state.allowed);
                if (done == state.done) return;
                state.done = done;
                if (done == state.messages) complete_step(instance, state);
                touch(instance, s);
                return;
            }
            case StepKind::kLocal:
                if (before != 0 || state.allowed == 0) return;
                if (step.local_ns == 0) {
                    message_done(instance, s);
                } else {
                    add_timer({saturating_add(now_, {step.local_ns}), kNone, s, &instance});
                }
                return;
        }
    }

    void message_done(Instance& instance, std::uint32_t s) {
        StepState& state = instance.steps[s];
        if (++state.done == state.messages) complete_step(instance, state);
        touch(instance, s);
    }

    // A step went on: those that wait for it are for `propagate` to look at.
    void touch(Instance& instance, std::uint32_t s) {
        const std::uint32_t* const begin = instance.plan->dependent_begin.data() + s;
        if (begin[0] != begin[1]) touched_.push_back({&instance, s});
    }

    void complete_step(Instance& instance, StepState& state) {
        state.complete = true;
        if (--instance.steps_left == 0) finished_.push_back(&instance);
    }

    // Carries progress on to the steps that wait for it. A loop, not a recursion: chains may be long.
    void propagate() {
        while (!touched_.empty() && running()) {
            const InFlight touched = touched_.back();
            touched_.pop_back();
            Instance& instance = *touched.instance;
            const TemplatePlan& plan = *instance.plan;
            const bool complete = instance.steps[touched.step].complete;
            const std::uint32_t end = plan.dependent_begin[touched.step + 1];
            for (std::uint32_t d = plan.dependent_begin[touched.step]; d < end; ++d) {
                const Dependent& dependent = plan.dependents[d];
                if (complete || dependent.mode == NeedMode::kMessage) advance_step(instance, dependent.step);
            }
        }
    }

    // -- sending

    void queue_port(Port& port) {
        if (port.queued) return;
        port.queued = true;
        const std::uint32_t connection = port.instance->plan->ports[port.index].connection;
        append(links_[connection], port);
        pump(connection);
    }

    static void append(Link& link, Port& port) {
        port.next = nullptr;
        (link.head == nullptr ? link.head : link.tail->next) = &port;
        link.tail = &port;
    }

    // Sends on one connection while it takes frames; ports take turns, a message each.
    void pump(std::uint32_t connection) {
        Link& link = links_[connection];
        if (link.pumping) return;
        link.pumping = true;
        while (link.head != nullptr && running() && !transport_.busy(connection) &&
               (window_ == 0 || link.sent - link.acknowledged < window_)) {
            Port& port = *link.head;
            link.head = port.next;
            link.sending = &port;
            const Sending sending = sending_of(port);
            const Instance& instance = *port.instance;
            Frame frame;
            frame.call_id = program_.calls[instance.call].call_id;
            frame.iteration = instance.iteration;
            frame.channel = program_.connections[connection].channel;
            frame.bytes = sending.bytes;
            frame.message = std::uint64_t{port.send_cursor} << 32 | port.send_message;
            SendTimes times;
            if (!transport_.send(connection, frame, times)) break;
            see(times.last);
            finish_send(connection, sending, times);
        }
        link.pumping = false;
    }

    // The message that a port sends next.
    Sending sending_of(const Port& port) const {
        const std::uint32_t s = next_send(port);
        return {s, instances_.message_bytes(*port.instance, port.instance->steps[s], port.send_message)};
    }

    void finish_send(std::uint32_t connection, const Sending& sent, SendTimes times) {
        Link& link = links_[connection];
        Port& port = *link.sending;
        link.sending = nullptr;
        Instance& instance = *port.instance;
        const StepState& step = instance.steps[sent.step];
        if (record_messages_) {
            record_message(EventType::kSent, instance, connection, sent.bytes, port.send_cursor,
                           port.send_message, instance.allowed_at[step.times_at + port.send_message],
                           times.first, times.last);
        }
        EventHeader& header = events_.header();
        bytes_sent_ += sent.bytes;
        header.bytes_sent.store(bytes_sent_, std::memory_order_relaxed);
        header.messages_sent.store(++messages_sent_, std::memory_order_relaxed);
        if (++port.send_message == step.messages) {
            ++port.send_cursor;
            port.send_message = 0;
        }
        port.queued = false;
        if (sends_more(port) && instance.steps[next_send(port)].allowed > port.send_message) {
            port.queued = true;
            append(link, port);
        }
        ++link.sent;
        if (window_ > 0) {
            link.unacknowledged[(link.sent - 1) % window_] = {&instance, sent.step};
        } else {
            message_done(instance, sent.step);
        }
    }

    void record_message(EventType type, const Instance& instance, std::uint32_t connection,
                        std::uint64_t bytes, std::uint32_t ordinal, std::uint32_t message, Nanos t0, Nanos t1,
                        Nanos t2) {
        if (!record_messages_) return;
        const Call& call = program_.calls[instance.call];
        const Connection& link = program_.connections[connection];
        events_.write({type, link.channel, instance.iteration, call.op, link.peer, bytes, t0.value, t1.value,
                       t2.value, call.call_id, message, std::uint64_t{ordinal} << 32 | message});
    }

    // -- failures: the cold path

    static std::string name_message(std::uint64_t message) {
        return std::to_string(message & kNone) + " of step " + std::to_string(message >> 32);
    }

    void fail(FailureReport report) {
        if (state_ != State::kRunning) return;
        state_ = State::kFailed;
        failure_ = std::move(report);
    }

    bool refuse(std::uint32_t connection, const Frame& frame, const std::string& what) {
        fail_message(Code::kProtocol, connection, frame,
                     "rank " + std::to_string(program_.connections[connection].peer) + " sent " + what +
                         ": call " + std::to_string(frame.call_id) +
                         (frame.iteration == kNone ? "" : ", iteration " + std::to_string(frame.iteration)));
        return false;
    }

    void fail_message(Code code, std::uint32_t connection, const Frame& frame, const std::string& text) {
        FailureReport report;
        const std::uint32_t call = program_.find_call(frame.call_id);
        report.code = code;
        report.op = call == kNone ? kNone : program_.calls[call].op;
        report.iteration = frame.iteration;
        report.peer = program_.connections[connection].peer;
        report.call_id = frame.call_id;
        report.text = text;
        fail(std::move(report));
    }

    // Fails with what the rank was waiting for; `connection` says whose fault it is, if somebody's.
    void fail_waiting(Code code, const std::string& reason, std::uint32_t connection = kNone) {
        FailureReport report = waiting();
        report.code = code;
        if (connection != kNone) report.peer = program_.connections[connection].peer;
        report.text = reason + "; " + report.text;
        fail(std::move(report));
    }

    std::string unfinished() const {
        if constexpr (requires { transport_.unfinished(); }) {
            const std::string text = transport_.unfinished();
            if (!text.empty()) return "; " + text;
        }
        return {};
    }

    FailureReport waiting() {
        see(clock_.now());
        FailureReport report = describe_waiting(program_, schedule_, instances_, iteration_);
        report.waited_ns = static_cast<std::uint64_t>((now_ - last_progress_).value);
        return report;
    }

    const Program& program_;
    EventFile& events_;
    Clock& clock_;
    Transport& transport_;
    PaceFile* const pace_;
    const bool record_messages_;
    const std::uint32_t window_;

    State state_ = State::kIdle;
    FailureReport failure_;
    Nanos now_;
    Nanos last_progress_;
    Nanos iteration_start_;
    std::uint32_t iteration_ = 0;
    std::uint64_t moved_ = 0;
    std::uint64_t total_ops_done_ = 0;
    std::uint64_t bytes_sent_ = 0, bytes_received_ = 0, messages_sent_ = 0, messages_received_ = 0;

    Schedule schedule_;
    Instances instances_;
    std::vector<Timer> timers_;
    std::vector<Link> links_;
    std::vector<InFlight> touched_;
    std::vector<Instance*> finished_;
};

}  // namespace genie
