// One rank: a state machine that walks its program and never blocks.
//
// `advance` does what can be done now and says until when nothing will happen by itself. Time comes from
// `Clock`
// (`Nanos now()`), bytes go through `Transport`:
//
//     bool poll(Sink&)                                  deliver what has arrived; true if anything happened
//     bool pending()                                    there is more to deliver at once
//     bool busy(connection)                             a frame is on its way out
//     bool send(connection, const Frame&, SendTimes&)   true if handed over whole at once
//     void send_credit(connection, messages)            now or as soon as the connection is free
//     bool drained()                                    nothing is left to hand over
//     uint64_t moved()                                  bytes so far, to tell slow from stuck
//
// The driver runs ranks over sockets and the real clock, the simulator over a virtual one. In steady state
// nothing here allocates or locks; every index was checked when the program was parsed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "events.h"
#include "failure.h"
#include "program.h"
#include "transport.h"
#include "units.h"

namespace genie {

// What `advance` waits for: bytes always; and this instant. `more` says that it has work left right now.
struct Wait {
    Nanos deadline = Nanos::never();
    bool timer = false;  // the deadline is an operator's end, worth spinning for
    bool more = false;
};

template <class Clock, class Transport>
class Rank final : public Sink {
  public:
    enum class State { kIdle, kRunning, kDone, kFailed };

    Rank(const Program& program, EventFile& events, Clock& clock, Transport& transport)
        : program_(program),
          events_(events),
          clock_(clock),
          transport_(transport),
          record_messages_(program.record_messages()),
          window_(program.header.window_messages),
          ops_(program.ops.size()),
          startable_(program.ops.size()),
          lanes_(program.lanes.size()),
          calls_(program.calls.size()),
          pools_(program.templates.size()),
          links_(program.connections.size()) {
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            lanes_[lane].ready.reserve(program.lane_begin[lane + 1] - program.lane_begin[lane]);
        }
        dirty_lanes_.reserve(lanes_.size());
        std::size_t most_steps = 0;
        for (std::uint32_t t = 0; t < pools_.size(); ++t) {
            most_steps = std::max<std::size_t>(most_steps, program.templates[t].steps);
            for (int i = 0; i < kInstancesAtStart; ++i) release(grow_pool(t));
        }
        touched_.reserve(2 * most_steps + 64);
        finished_.reserve(64);
        timers_.reserve(lanes_.size() + 64);
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
        bool worked = transport_.poll(*this);
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
            fail_waiting(Code::kStall, "no progress");
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
    std::uint64_t instances_made() const { return instances_made_; }

    // -- Sink
    // ---------------------------------------------------------------------------------------------------

    bool on_header(std::uint32_t connection, const Frame& frame, Nanos now) override {
        if (!running()) return false;
        see(now);
        const std::uint32_t call = program_.find_call(frame.call_id);
        if (call == kNone) return refuse(connection, frame, "a message of a call this rank takes no part in");
        if (frame.channel != program_.connections[connection].channel) {
            return refuse(connection, frame, "a message of channel " + std::to_string(frame.channel));
        }
        if (frame.iteration < calls_[call].floor || frame.iteration >= program_.header.iterations) {
            return refuse(connection, frame, "a message of a call that was complete or never will be");
        }
        Instance& instance = find_or_make(call, frame.iteration);
        const TemplatePlan& plan = *instance.plan;
        const auto found = std::lower_bound(
            plan.ports.begin(), plan.ports.end(), connection,
            [](const PortPlan& port, std::uint32_t wanted) { return port.connection < wanted; });
        if (found == plan.ports.end() || found->connection != connection) {
            return refuse(connection, frame, "a message from a rank that sends nothing in this call");
        }
        Port& port = instance.ports[static_cast<std::size_t>(found - plan.ports.begin())];
        if (found->recv_begin + port.recv_cursor >= found->recv_end) {
            return refuse(connection, frame, "more messages than the call has");
        }
        const std::uint64_t expected_message = std::uint64_t{port.recv_cursor} << 32 | port.recv_message;
        if (frame.message != expected_message) {
            return refuse(connection, frame,
                          "message " + name_message(frame.message) + " where message " +
                              name_message(expected_message) + " was due");
        }
        const std::uint32_t s = plan.port_steps[found->recv_begin + port.recv_cursor];
        const std::uint64_t expected = message_bytes(instance, instance.steps[s], port.recv_message);
        if (frame.bytes != expected) {
            fail_message(Code::kSizeMismatch, connection, frame,
                         "call " + std::to_string(frame.call_id) + ", message " +
                             name_message(frame.message) + " from rank " +
                             std::to_string(program_.connections[connection].peer) + ": expected " +
                             std::to_string(expected) + " bytes, found " + std::to_string(frame.bytes));
            return false;
        }
        Link& link = links_[connection];
        link.receiving = &instance;
        link.receiving_step = s;
        link.header_seen = now;
        return true;
    }

    void on_message(std::uint32_t connection, Nanos now) override {
        see(now);
        Link& link = links_[connection];
        Instance& instance = *link.receiving;
        const std::uint32_t s = link.receiving_step;
        StepState& step = instance.steps[s];
        Port& port = instance.ports[instance.plan->port_of_step[s]];
        const std::uint64_t bytes = message_bytes(instance, step, port.recv_message);
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
        finish_send(connection, times);
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
            fail_at(Code::kProtocol, connection, "credit for messages that were never sent");
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
        fail_at(code, connection, reason);
    }

  private:
    static constexpr int kInstancesAtStart = 2;  // one at work, one for a peer that is ahead
    static constexpr int kOpsAtOnce = 4096;

    enum class OpPhase : std::uint32_t { kWaiting, kReady, kRunning, kDone };

    struct OpState {
        std::uint32_t needed;
        OpPhase phase;
        Nanos ready;
        Nanos started;
    };

    struct Lane {
        std::uint32_t running = kNone;
        std::uint32_t cursor = 0;  // ordered lanes: place in lane_ops of the operator whose turn it is
        bool dirty = false;
        std::vector<std::uint32_t> ready;  // other lanes: a heap, lowest index first
    };

    struct StepState {
        std::uint64_t bytes;
        std::uint32_t messages;
        std::uint32_t arrived;  // receives: messages that are here, whether needed yet or not
        std::uint32_t allowed;  // messages whose needs are met
        std::uint32_t done;
        std::uint32_t times_at;  // sends: where in allowed_at its messages begin
        bool complete;
    };

    struct Instance;

    struct Port {
        Instance* instance = nullptr;
        Port* next = nullptr;  // in the connection's queue of ports that may send
        std::uint32_t index = 0;
        std::uint32_t send_cursor = 0, send_message = 0;
        std::uint32_t recv_cursor = 0, recv_message = 0;
        bool queued = false;
    };

    // One use of a template: a call in one iteration. Made when its operator starts or its first message
    // arrives.
    struct Instance {
        Instance* next = nullptr;  // in the call's list or in the pool
        const TemplatePlan* plan = nullptr;
        std::uint32_t template_index = 0;
        std::uint32_t call = 0;
        std::uint32_t iteration = 0;
        std::uint32_t steps_left = 0;
        bool started = false;
        std::vector<StepState> steps;
        std::vector<Port> ports;
        std::vector<Nanos> allowed_at;  // when each message was allowed; only if messages are recorded
    };

    struct CallState {
        std::uint32_t floor = 0;  // the lowest iteration that is not complete
        Instance* first = nullptr;
    };

    struct InFlight {
        Instance* instance;
        std::uint32_t step;
    };

    struct Link {
        Port* head = nullptr;
        Port* tail = nullptr;
        Port* sending = nullptr;
        bool pumping = false;
        Instance* receiving = nullptr;
        std::uint32_t receiving_step = 0;
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

    // -- operators
    // ----------------------------------------------------------------------------------------------

    void begin_iteration() {
        iteration_start_ = now_;
        ops_done_ = 0;
        startable_head_ = startable_tail_ = 0;
        for (Lane& lane : lanes_) lane.cursor = 0;
        for (std::size_t i = 0; i < ops_.size(); ++i) {
            ops_[i] = {program_.ops[i].dep_count, OpPhase::kWaiting, now_, now_};
        }
        for (std::uint32_t i = 0; i < ops_.size(); ++i) {
            if (ops_[i].needed == 0) make_ready(i);
        }
        dispatch_lanes();
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
            } else if (startable_head_ != startable_tail_) {
                start_op(startable_[startable_head_++]);
            } else if (iteration_ < program_.header.iterations && ops_done_ == ops_.size()) {
                end_iteration();
                if (iteration_ < program_.header.iterations) begin_iteration();
            } else {
                break;
            }
        }
        return done;
    }

    void make_ready(std::uint32_t op) {
        ops_[op].phase = OpPhase::kReady;
        ops_[op].ready = now_;
        const std::uint32_t lane_index = program_.ops[op].lane;
        if (lane_index == kNone) {
            startable_[startable_tail_++] = op;
            return;
        }
        Lane& lane = lanes_[lane_index];
        if ((program_.lanes[lane_index] & 1) == 0) {
            lane.ready.push_back(op);
            std::push_heap(lane.ready.begin(), lane.ready.end(), std::greater<>());
        }
        touch_lane(lane_index);
    }

    void touch_lane(std::uint32_t index) {
        if (lanes_[index].dirty) return;
        lanes_[index].dirty = true;
        dirty_lanes_.push_back(index);
    }

    // Gives free lanes to their next operator. After all that became ready at one instant is known, so that
    // the lowest index wins.
    void dispatch_lanes() {
        for (const std::uint32_t index : dirty_lanes_) {
            Lane& lane = lanes_[index];
            lane.dirty = false;
            if (lane.running != kNone) continue;
            if ((program_.lanes[index] & 1) != 0) {
                const std::uint32_t at = program_.lane_begin[index] + lane.cursor;
                if (at == program_.lane_begin[index + 1]) continue;
                if (ops_[program_.lane_ops[at]].phase != OpPhase::kReady) continue;
                ++lane.cursor;
                lane.running = program_.lane_ops[at];
            } else {
                if (lane.ready.empty()) continue;
                std::pop_heap(lane.ready.begin(), lane.ready.end(), std::greater<>());
                lane.running = lane.ready.back();
                lane.ready.pop_back();
            }
            startable_[startable_tail_++] = lane.running;
        }
        dirty_lanes_.clear();
    }

    void start_op(std::uint32_t index) {
        const Op& op = program_.ops[index];
        ops_[index].phase = OpPhase::kRunning;
        ops_[index].started = now_;
        if (op.call != kNone) {
            start_call(op.call);
            return;
        }
        const Nanos duration = scaled({op.duration_ns}, program_.header.compute_scale_ppm);
        if (duration.value == 0) {
            complete_op(index);
        } else {
            add_timer({saturating_add(now_, duration), index, 0, nullptr});
        }
    }

    void complete_op(std::uint32_t index) {
        const Op& op = program_.ops[index];
        OpState& state = ops_[index];
        see(clock_.now());
        state.phase = OpPhase::kDone;
        Event event{EventType::kOperator, 0,          iteration_, index, kNone, 0, state.ready.value,
                    state.started.value,  now_.value, kNone,      0,     0};
        if (op.call != kNone) {
            event.bytes = program_.calls[op.call].bytes;
            event.call_id = program_.calls[op.call].call_id;
        }
        events_.write(event);
        events_.header().ops_done.store(++total_ops_done_, std::memory_order_relaxed);
        ++ops_done_;
        if (op.lane != kNone) {
            lanes_[op.lane].running = kNone;
            touch_lane(op.lane);
        }
        for (std::uint32_t e = op.out_begin; e < op.out_end; ++e) {
            const std::uint32_t to = program_.out_edges[e];
            if (--ops_[to].needed == 0) make_ready(to);
        }
        dispatch_lanes();
    }

    // -- timers
    // -------------------------------------------------------------------------------------------------

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
    // --------------------------------------------------------------------------------------------------

    Instance& grow_pool(std::uint32_t template_index) {
        const TemplatePlan& plan = program_.templates[template_index];
        instances_.push_back(std::make_unique<Instance>());
        ++instances_made_;
        Instance& instance = *instances_.back();
        instance.plan = &plan;
        instance.template_index = template_index;
        instance.steps.resize(plan.steps);
        instance.ports.resize(plan.ports.size());
        for (std::uint32_t p = 0; p < instance.ports.size(); ++p) {
            instance.ports[p].instance = &instance;
            instance.ports[p].index = p;
        }
        return instance;
    }

    void release(Instance& instance) {
        instance.next = pools_[instance.template_index];
        pools_[instance.template_index] = &instance;
    }

    Instance& find_or_make(std::uint32_t call_index, std::uint32_t iteration) {
        Instance** at = &calls_[call_index].first;
        while (*at != nullptr && (*at)->iteration < iteration) at = &(*at)->next;
        if (*at != nullptr && (*at)->iteration == iteration) return **at;
        const Call& call = program_.calls[call_index];
        Instance*& pool = pools_[call.template_index];
        if (pool == nullptr) release(grow_pool(call.template_index));
        Instance& instance = *pool;
        pool = instance.next;
        set_up(instance, call_index, iteration);
        instance.next = *at;
        *at = &instance;
        return instance;
    }

    void set_up(Instance& instance, std::uint32_t call_index, std::uint32_t iteration) {
        const TemplatePlan& plan = *instance.plan;
        const Call& call = program_.calls[call_index];
        instance.call = call_index;
        instance.iteration = iteration;
        instance.steps_left = plan.steps;
        instance.started = false;
        std::uint64_t times = 0;
        for (std::uint32_t s = 0; s < plan.steps; ++s) {
            const Step& step = program_.steps[plan.step_begin + s];
            StepState& state = instance.steps[s];
            state = {};
            state.messages = 1;
            if (step.kind == StepKind::kLocal) continue;
            state.bytes = program_.step_bytes(call, plan, step);
            if (state.bytes > call.chunk_bytes) {
                state.messages =
                    static_cast<std::uint32_t>((state.bytes + call.chunk_bytes - 1) / call.chunk_bytes);
            }
            if (step.kind == StepKind::kSend && record_messages_) {
                state.times_at = static_cast<std::uint32_t>(times);
                times += state.messages;
            }
        }
        if (times > kNone) throw std::bad_alloc();
        if (instance.allowed_at.size() < times) instance.allowed_at.resize(times);
        for (Port& port : instance.ports) {
            port.next = nullptr;
            port.send_cursor = port.send_message = port.recv_cursor = port.recv_message = 0;
            port.queued = false;
        }
    }

    void start_call(std::uint32_t call_index) {
        Instance& instance = find_or_make(call_index, iteration_);
        instance.started = true;
        if (instance.steps_left == 0) {
            finished_.push_back(&instance);
            return;
        }
        for (std::uint32_t s = 0; s < instance.plan->steps && running(); ++s) {
            advance_step(instance, s);
            propagate();
        }
    }

    void finish_instance(Instance& instance) {
        finished_.pop_back();
        CallState& call = calls_[instance.call];
        call.first = instance.next;  // its iteration is the lowest, so it is the first
        call.floor = instance.iteration + 1;
        const std::uint32_t op = program_.calls[instance.call].op;
        release(instance);
        complete_op(op);
    }

    // -- steps
    // --------------------------------------------------------------------------------------------------

    std::uint64_t message_bytes(const Instance& instance, const StepState& step,
                                std::uint32_t message) const {
        const std::uint64_t chunk = program_.calls[instance.call].chunk_bytes;
        return message + 1 < step.messages ? chunk : step.bytes - chunk * message;
    }

    // How many messages of a step its needs allow. A needed step that is complete allows all.
    std::uint32_t allowed_messages(const Instance& instance, const Step& step, std::uint32_t messages) const {
        std::uint32_t allowed = messages;
        for (std::uint32_t n = step.need_begin; n < step.need_end; ++n) {
            const Need& need = program_.needs[n];
            const StepState& needed = instance.steps[need.step];
            if (needed.complete) continue;
            if (need.mode == NeedMode::kWhole || needed.done == 0) return 0;
            allowed = std::min(allowed, needed.done);
        }
        return allowed;
    }

    // Looks at a step again after something it needs went on, or a message of it arrived.
    void advance_step(Instance& instance, std::uint32_t s) {
        StepState& state = instance.steps[s];
        if (!instance.started || state.complete) return;
        const Step& step = program_.steps[instance.plan->step_begin + s];
        const std::uint32_t before = state.allowed;
        if (before < state.messages) state.allowed = allowed_messages(instance, step, state.messages);
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
                touched_.push_back({&instance, s});
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
        touched_.push_back({&instance, s});
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
    // ------------------------------------------------------------------------------------------------

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
            const Instance& instance = *port.instance;
            const PortPlan& plan = instance.plan->ports[port.index];
            const StepState& step =
                instance.steps[instance.plan->port_steps[plan.send_begin + port.send_cursor]];
            Frame frame;
            frame.call_id = program_.calls[instance.call].call_id;
            frame.iteration = instance.iteration;
            frame.channel = program_.connections[connection].channel;
            frame.bytes = message_bytes(instance, step, port.send_message);
            frame.message = std::uint64_t{port.send_cursor} << 32 | port.send_message;
            SendTimes times;
            if (!transport_.send(connection, frame, times)) break;
            see(times.last);
            finish_send(connection, times);
        }
        link.pumping = false;
    }

    void finish_send(std::uint32_t connection, SendTimes times) {
        Link& link = links_[connection];
        Port& port = *link.sending;
        link.sending = nullptr;
        Instance& instance = *port.instance;
        const PortPlan& plan = instance.plan->ports[port.index];
        const std::uint32_t s = instance.plan->port_steps[plan.send_begin + port.send_cursor];
        StepState& step = instance.steps[s];
        const std::uint64_t bytes = message_bytes(instance, step, port.send_message);
        if (record_messages_) {
            record_message(EventType::kSent, instance, connection, bytes, port.send_cursor, port.send_message,
                           instance.allowed_at[step.times_at + port.send_message], times.first, times.last);
        }
        EventHeader& header = events_.header();
        bytes_sent_ += bytes;
        header.bytes_sent.store(bytes_sent_, std::memory_order_relaxed);
        header.messages_sent.store(++messages_sent_, std::memory_order_relaxed);
        if (++port.send_message == step.messages) {
            ++port.send_cursor;
            port.send_message = 0;
        }
        port.queued = false;
        if (plan.send_begin + port.send_cursor < plan.send_end) {
            const StepState& next =
                instance.steps[instance.plan->port_steps[plan.send_begin + port.send_cursor]];
            if (next.allowed > port.send_message) {
                port.queued = true;
                append(link, port);
            }
        }
        if (window_ > 0) {
            link.unacknowledged[link.sent % window_] = {&instance, s};
            ++link.sent;
        } else {
            ++link.sent;
            message_done(instance, s);
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
    // ----------------------------------------------------------------------------------

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
                         ": call " + std::to_string(frame.call_id) + ", iteration " +
                         std::to_string(frame.iteration));
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

    void fail_at(Code code, std::uint32_t connection, const std::string& reason) {
        FailureReport report = waiting();
        report.code = code;
        report.peer = program_.connections[connection].peer;
        report.text = reason + "; " + report.text;
        fail(std::move(report));
    }

    void fail_waiting(Code code, const std::string& reason) {
        FailureReport report = waiting();
        report.code = code;
        report.text = reason + "; " + report.text;
        fail(std::move(report));
    }

    // What this rank waits for: the first running operator, and in it the first step that only a peer can
    // move.
    FailureReport waiting() {
        see(clock_.now());
        FailureReport report;
        report.iteration = std::min(iteration_, program_.header.iterations - 1);
        report.waited_ns = static_cast<std::uint64_t>((now_ - last_progress_).value);
        const auto is_running = [](const OpState& op) { return op.phase == OpPhase::kRunning; };
        auto found = std::find_if(ops_.begin(), ops_.end(), [&](const OpState& op) {
            const std::uint32_t call = program_.ops[static_cast<std::size_t>(&op - ops_.data())].call;
            return is_running(op) && call != kNone;
        });
        if (found == ops_.end()) found = std::find_if(ops_.begin(), ops_.end(), is_running);
        if (found == ops_.end()) {
            report.text = iteration_ == program_.header.iterations
                              ? "all operators were done, handing over the last bytes"
                              : "no operator was running";
            return report;
        }
        report.op = static_cast<std::uint32_t>(found - ops_.begin());
        report.text = "operator " + std::to_string(report.op);
        const std::uint32_t call = program_.ops[report.op].call;
        if (call == kNone) {
            report.text += " was computing";
            return report;
        }
        report.call_id = program_.calls[call].call_id;
        report.text += " in call " + std::to_string(report.call_id);
        const Instance* instance = calls_[call].first;
        if (instance == nullptr || !instance->started) return report;
        for (const StepKind kind : {StepKind::kRecv, StepKind::kSend}) {
            for (std::uint32_t s = 0; s < instance->plan->steps; ++s) {
                const Step& step = program_.steps[instance->plan->step_begin + s];
                const StepState& state = instance->steps[s];
                const std::uint32_t moved = kind == StepKind::kRecv ? state.arrived : state.done;
                if (step.kind != kind || state.complete || moved == state.messages || state.allowed <= moved)
                    continue;
                report.peer = program_.connections[step.connection].peer;
                report.text +=
                    (kind == StepKind::kRecv ? " waited for message " : " waited to send message ") +
                    std::to_string(moved) + " of " + std::to_string(state.messages) + " of step " +
                    std::to_string(s) + (kind == StepKind::kRecv ? " from rank " : " to rank ") +
                    std::to_string(report.peer) + " on channel " + std::to_string(step.channel);
                return report;
            }
        }
        return report;
    }

    const Program& program_;
    EventFile& events_;
    Clock& clock_;
    Transport& transport_;
    const bool record_messages_;
    const std::uint32_t window_;

    State state_ = State::kIdle;
    FailureReport failure_;
    Nanos now_;
    Nanos last_progress_;
    Nanos iteration_start_;
    std::uint32_t iteration_ = 0;
    std::uint64_t moved_ = 0;
    std::uint64_t ops_done_ = 0;  // in this iteration
    std::uint64_t total_ops_done_ = 0;
    std::uint64_t bytes_sent_ = 0, bytes_received_ = 0, messages_sent_ = 0, messages_received_ = 0;
    std::uint64_t instances_made_ = 0;

    std::vector<OpState> ops_;
    std::vector<std::uint32_t> startable_;  // a queue: each operator passes once an iteration
    std::size_t startable_head_ = 0, startable_tail_ = 0;
    std::vector<Lane> lanes_;
    std::vector<std::uint32_t> dirty_lanes_;
    std::vector<Timer> timers_;
    std::vector<CallState> calls_;
    std::vector<Instance*> pools_;  // free instances of each template
    std::vector<std::unique_ptr<Instance>> instances_;
    std::vector<Link> links_;
    std::vector<InFlight> touched_;
    std::vector<Instance*> finished_;
};

}  // namespace genie
