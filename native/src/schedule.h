// The operators of one iteration of a rank: which are ready, which lane is free, which starts next. A lane
// runs one operator at a time: an ordered one strictly in index order, another the lowest index that is
// ready. Knows neither calls nor timers; the rank starts what `next` gives and says when it is done.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "program.h"
#include "units.h"

namespace genie {

enum class OpPhase : std::uint32_t { kWaiting, kReady, kRunning, kDone };

struct OpState {
    std::uint32_t needed;
    OpPhase phase;
    Nanos ready;
    Nanos started;
};

class Schedule {
  public:
    explicit Schedule(const Program& program)
        : program_(program),
          ops_(program.ops.size()),
          startable_(program.ops.size()),
          lanes_(program.lanes.size()) {
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            lanes_[lane].ready.reserve(program.lane_begin[lane + 1] - program.lane_begin[lane]);
        }
        dirty_lanes_.reserve(lanes_.size());
    }

    const std::vector<OpState>& ops() const { return ops_; }
    bool all_done() const { return done_ == ops_.size(); }

    void begin_iteration(Nanos now) {
        done_ = 0;
        head_ = tail_ = 0;
        for (Lane& lane : lanes_) lane.cursor = 0;
        for (std::size_t i = 0; i < ops_.size(); ++i) {
            ops_[i] = {program_.ops[i].dep_count, OpPhase::kWaiting, now, now};
        }
        for (std::uint32_t i = 0; i < ops_.size(); ++i) {
            if (ops_[i].needed == 0) make_ready(i, now);
        }
        dispatch_lanes();
    }

    // An operator that starts at `now`; kNone if none may.
    std::uint32_t next(Nanos now) {
        if (head_ == tail_) return kNone;
        const std::uint32_t op = startable_[head_++];
        ops_[op].phase = OpPhase::kRunning;
        ops_[op].started = now;
        return op;
    }

    // Frees the operator's lane and makes ready what waited for it last.
    void finish(std::uint32_t index, Nanos now) {
        const Op& op = program_.ops[index];
        ops_[index].phase = OpPhase::kDone;
        ++done_;
        if (op.lane != kNone) {
            lanes_[op.lane].running = kNone;
            touch_lane(op.lane);
        }
        for (std::uint32_t e = op.out_begin; e < op.out_end; ++e) {
            const std::uint32_t to = program_.out_edges[e];
            if (--ops_[to].needed == 0) make_ready(to, now);
        }
        dispatch_lanes();
    }

  private:
    struct Lane {
        std::uint32_t running = kNone;
        std::uint32_t cursor = 0;  // ordered lanes: place in lane_ops of the operator whose turn it is
        bool dirty = false;
        std::vector<std::uint32_t> ready;  // other lanes: a heap, lowest index first
    };

    void make_ready(std::uint32_t op, Nanos now) {
        ops_[op].phase = OpPhase::kReady;
        ops_[op].ready = now;
        const std::uint32_t lane_index = program_.ops[op].lane;
        if (lane_index == kNone) {
            startable_[tail_++] = op;
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
            startable_[tail_++] = lane.running;
        }
        dirty_lanes_.clear();
    }

    const Program& program_;
    std::vector<OpState> ops_;
    std::vector<std::uint32_t> startable_;  // a queue: each operator passes once an iteration
    std::size_t head_ = 0, tail_ = 0;
    std::size_t done_ = 0;
    std::vector<Lane> lanes_;
    std::vector<std::uint32_t> dirty_lanes_;
};

}  // namespace genie
