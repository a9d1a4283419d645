// RDMA devices of this host: their ports, addresses (GIDs) and limits, and which GID a run would use, with
// the reason. Read by the verbs transport when it opens and by `genie-agent-dl verbs list`. Changes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "verbs_library.h"

namespace genie {

using GidBytes = std::array<std::uint8_t, 16>;

enum class GidType : std::uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct VerbsGid {
    int index = 0;
    GidBytes bytes{};
    GidType type = GidType::kInfiniBand;
    std::string interface;  // of the kernel, where known
};

// Which GID, and why; index -1: none will do.
struct GidChoice {
    int index = -1;
    std::string why;
};

struct VerbsPort {
    std::uint8_t number = 1;
    ibv_port_attr attributes{};
    std::vector<VerbsGid> gids;
    GidChoice chosen;

    bool ethernet() const { return attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
    const char* layer_text() const { return ethernet() ? "Ethernet" : "InfiniBand"; }
    bool active() const { return attributes.state == IBV_PORT_ACTIVE; }
};

struct VerbsDevice {
    std::string name;
    ibv_device_attr attributes{};
    std::vector<VerbsPort> ports;
};

// A GID as addresses are written: ::ffff:10.0.0.1, fe80::1.
std::string gid_text(const GidBytes& gid);
// The IPv4 address in an IPv4-mapped GID, in host order; 0 if it is none.
std::uint32_t gid_ipv4(const GidBytes& gid);
const char* gid_type_text(GidType type);
std::uint32_t mtu_bytes(ibv_mtu mtu);

// NCCL's order (net_ib, ncclUpdateGidIndex, with its defaults: IPv4, RoCE version 2): on Ethernet the first
// RoCE v2 GID with an IPv4 address; else one with a routable IPv6 address, else a link-local one, RoCE v2
// before v1. On InfiniBand index 0; packets go by LID there.
GidChoice choose_gid(const VerbsPort& port);

// The ports of an open device.
VerbsDevice describe_device(const VerbsLibrary& library, ibv_context* context, const std::string& name);

// All devices of this host that can be opened. Throws Failure (kTransport) where they cannot be listed.
std::vector<VerbsDevice> list_devices(const VerbsLibrary& library);

// What `genie-agent-dl verbs list` prints: a JSON object, docs/transport-verbs.md says of what.
std::string devices_json(const VerbsLibrary& library, const std::vector<VerbsDevice>& devices);

}  // namespace genie
