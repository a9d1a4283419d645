// The program of one rank, as it arrives from the controller (docs/formats.md §1).
//
// `parse_program` takes any bytes whatever: what it returns is safe to execute without another check. It also
// derives what the executor wants to find in one step: dependents of steps, the order of messages on each
// connection, operators of lanes, calls by id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "failure.h"

namespace genie {

class BadProgram : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

enum ProgramFlag : std::uint32_t { kFlagVerify = 1, kFlagRecordMessages = 2 };
enum class StepKind : std::uint8_t { kSend = 0, kRecv = 1, kLocal = 2 };
enum class SizeKind : std::uint8_t { kZero = 0, kBlock = 1, kVector = 2 };
enum class NeedMode : std::uint32_t { kMessage = 0, kWhole = 1 };
enum class Role : std::uint16_t { kAccept = 0, kConnect = 1 };

constexpr std::uint32_t kProgramVersion = 2;
constexpr std::size_t kSections = 10;
constexpr std::uint64_t kMostSettingsBytes = 64 << 10;
constexpr std::uint32_t kMostWindowMessages = 1 << 20;

struct ProgramHeader {
    char magic[8];
    std::uint32_t version;
    std::uint32_t flags;
    std::uint32_t rank;
    std::uint32_t world;
    std::uint32_t iterations;
    std::uint32_t window_messages;
    std::uint64_t timeout_ns;
    std::uint64_t spin_ns;
    std::uint64_t event_capacity;
    std::uint32_t listen_ipv4;
    std::uint16_t listen_port;
    std::uint16_t connect_timeout_s;
    char congestion_control[16];
    std::uint8_t run_id[32];
    std::uint32_t sndbuf_bytes;
    std::uint32_t rcvbuf_bytes;
    std::uint64_t compute_scale_ppm;
    std::uint64_t counts[kSections];
    char transport[16];
    std::uint8_t zero[32];
};
static_assert(sizeof(ProgramHeader) == 256 && offsetof(ProgramHeader, counts) == 128);

struct Op {
    std::int64_t duration_ns;
    std::uint32_t call;
    std::uint32_t lane;
    std::uint32_t dep_count;
    std::uint32_t out_begin;
    std::uint32_t out_end;
    std::uint32_t reserved;
    std::uint64_t trace_id;
};
static_assert(sizeof(Op) == 40);

struct Call {
    std::uint32_t call_id;
    std::uint32_t op;
    std::uint32_t template_index;
    std::uint32_t comm;
    std::uint64_t bytes;
    std::uint64_t vector_begin;
    std::uint32_t vector_len;
    std::uint32_t chunk_bytes;
    std::uint64_t reserved;
};
static_assert(sizeof(Call) == 48);

struct TemplateRecord {
    std::uint32_t step_begin;
    std::uint32_t step_end;
    std::uint32_t channels;
    std::uint32_t reserved;
};
static_assert(sizeof(TemplateRecord) == 16);

struct Step {
    StepKind kind;
    SizeKind size_kind;
    std::uint16_t channel;
    std::uint32_t connection;
    std::uint32_t size_index;
    std::uint32_t size_of;
    std::uint32_t need_begin;
    std::uint32_t need_end;
    std::int64_t local_ns;
    std::uint64_t reserved;
};
static_assert(sizeof(Step) == 40);

struct Need {
    std::uint32_t step;
    NeedMode mode;
};
static_assert(sizeof(Need) == 8);

struct Connection {
    std::uint32_t peer;
    std::uint16_t channel;
    Role role;
    std::uint32_t remote_ipv4;
    std::uint16_t remote_port;
    std::uint16_t local_port;
    std::uint64_t reserved;
};
static_assert(sizeof(Connection) == 24);

// Who waits for a step, and how.
struct Dependent {
    std::uint32_t step;  // relative to the template, as all steps below
    NeedMode mode;
};

// The steps of one template that use one connection: sends and receives, each in step order.
struct PortPlan {
    std::uint32_t connection;
    std::uint32_t send_begin, send_end;  // in TemplatePlan::port_steps
    std::uint32_t recv_begin, recv_end;
};

struct TemplatePlan {
    std::uint32_t step_begin = 0;
    std::uint32_t steps = 0;
    std::uint32_t channels = 1;
    std::vector<std::uint32_t> dependent_begin;  // steps + 1
    std::vector<Dependent> dependents;
    std::vector<PortPlan> ports;  // ordered by connection
    std::vector<std::uint32_t> port_steps;
    std::vector<std::uint32_t> port_of_step;     // kNone for local steps
    std::vector<std::uint32_t> ordinal_of_step;  // among the sends or receives of its port
};

class Program {
  public:
    ProgramHeader header{};
    std::vector<Op> ops;
    std::vector<std::uint32_t> out_edges;
    std::vector<std::uint32_t> lanes;
    std::vector<Call> calls;
    std::vector<TemplateRecord> template_records;
    std::vector<Step> steps;
    std::vector<Need> needs;
    std::vector<std::uint64_t> vectors;
    std::vector<Connection> connections;
    std::string settings;  // the transport's own: lines KEY=VALUE (settings.h)

    std::vector<TemplatePlan> templates;
    std::vector<std::uint32_t> lane_begin;  // operators of each lane in index order: lanes + 1 offsets
    std::vector<std::uint32_t> lane_ops;

    bool verify() const { return (header.flags & kFlagVerify) != 0; }
    bool record_messages() const { return (header.flags & kFlagRecordMessages) != 0; }
    std::string congestion_control() const { return header.congestion_control; }
    std::string transport() const { return header.transport; }

    // Index of the call with this id, kNone if the rank takes no part in it.
    std::uint32_t find_call(std::uint32_t call_id) const {
        for (std::uint32_t at = hash(call_id) & call_mask_;; at = (at + 1) & call_mask_) {
            const std::uint32_t call = call_table_[at];
            if (call == kNone || calls[call].call_id == call_id) return call;
        }
    }

    // Bytes that a step moves in a call (genie/collectives/program.py has the same expressions).
    std::uint64_t step_bytes(const Call& call, const TemplatePlan& plan, const Step& step) const;

    void index_calls();

  private:
    static std::uint32_t hash(std::uint32_t id) { return (id * 0x9E3779B1U) >> 7 ^ id; }

    std::vector<std::uint32_t> call_table_;  // open addressing, power of two
    std::uint32_t call_mask_ = 0;
};

// Throws BadProgram with what was expected and what was found.
Program parse_program(std::span<const std::byte> blob);

}  // namespace genie
