// The running calls of a rank: one instance for each use of a template in one iteration, from a pool for each
// template. Made when the call's operator starts or when its first message arrives, whichever is first; in
// steady state none is allocated. Knows counts, not transports or time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "program.h"
#include "units.h"

namespace genie {

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

// What an instance does on one connection.
struct Port {
    Instance* instance = nullptr;
    Port* next = nullptr;  // in the connection's queue of ports that may send
    std::uint32_t index = 0;
    std::uint32_t send_cursor = 0, send_message = 0;
    std::uint32_t recv_cursor = 0, recv_message = 0;
    bool queued = false;
};

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

// What an instance does on a connection; null if nothing.
inline Port* find_port(Instance& instance, std::uint32_t connection) {
    const std::vector<PortPlan>& ports = instance.plan->ports;
    const auto found =
        std::lower_bound(ports.begin(), ports.end(), connection,
                         [](const PortPlan& port, std::uint32_t wanted) { return port.connection < wanted; });
    if (found == ports.end() || found->connection != connection) return nullptr;
    return &instance.ports[static_cast<std::size_t>(found - ports.begin())];
}

inline bool receives_more(const Port& port) {
    const PortPlan& plan = port.instance->plan->ports[port.index];
    return plan.recv_begin + port.recv_cursor < plan.recv_end;
}

inline std::uint64_t due_message(const Port& port) {
    return std::uint64_t{port.recv_cursor} << 32 | port.recv_message;
}

inline bool sends_more(const Port& port) {
    const PortPlan& plan = port.instance->plan->ports[port.index];
    return plan.send_begin + port.send_cursor < plan.send_end;
}

// The step of the message that a port sends next, of which there is one.
inline std::uint32_t next_send(const Port& port) {
    const TemplatePlan& plan = *port.instance->plan;
    return plan.port_steps[plan.ports[port.index].send_begin + port.send_cursor];
}

class Instances {
  public:
    explicit Instances(const Program& program)
        : program_(program), calls_(program.calls.size()), pools_(program.templates.size()) {
        for (std::uint32_t t = 0; t < pools_.size(); ++t) {
            most_steps_ = std::max<std::size_t>(most_steps_, program.templates[t].steps);
            for (int i = 0; i < kAtStart; ++i) release(grow_pool(t));
        }
    }

    // The lowest iteration of a call that is not complete.
    std::uint32_t floor(std::uint32_t call) const { return calls_[call].floor; }
    // The instance of the lowest iteration that has one, or nullptr.
    const Instance* first(std::uint32_t call) const { return calls_[call].first; }
    std::uint64_t made() const { return instances_.size(); }
    std::size_t most_steps() const { return most_steps_; }

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

    // A complete call: its iteration is the lowest, so it is the first of its list.
    void finish(Instance& instance) {
        CallState& call = calls_[instance.call];
        call.first = instance.next;
        call.floor = instance.iteration + 1;
        release(instance);
    }

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

  private:
    static constexpr int kAtStart = 2;  // one at work, one for a peer that is ahead

    struct CallState {
        std::uint32_t floor = 0;
        Instance* first = nullptr;
    };

    Instance& grow_pool(std::uint32_t template_index) {
        const TemplatePlan& plan = program_.templates[template_index];
        instances_.push_back(std::make_unique<Instance>());
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
            if (step.kind == StepKind::kRecv) {
                if (step.need_begin == step.need_end) state.allowed = state.messages;
            } else if (program_.record_messages()) {
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

    const Program& program_;
    std::size_t most_steps_ = 0;
    std::vector<CallState> calls_;
    std::vector<Instance*> pools_;  // free instances of each template
    std::vector<std::unique_ptr<Instance>> instances_;
};

}  // namespace genie
