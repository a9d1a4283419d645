// libibverbs, found when a run asks for it: no executable is linked against it, and a host without it runs
// everything else.
//
// The table holds the functions that the library exports; those that <infiniband/verbs.h> defines inline
// (posting, polling) go through the device's own context and need no lookup. Tests fill in a table of their
// own.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace genie {

struct VerbsLibrary {
    decltype(&::ibv_get_device_list) get_device_list = nullptr;
    decltype(&::ibv_free_device_list) free_device_list = nullptr;
    decltype(&::ibv_get_device_name) get_device_name = nullptr;
    decltype(&::ibv_open_device) open_device = nullptr;
    decltype(&::ibv_close_device) close_device = nullptr;
    decltype(&::ibv_query_device) query_device = nullptr;
    decltype(&::ibv_query_port) query_port = nullptr;
    decltype(&::ibv_query_gid) query_gid = nullptr;
    decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
    decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
    decltype(&::ibv_reg_mr) reg_mr = nullptr;
    decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
    decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
    decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
    decltype(&::ibv_create_cq) create_cq = nullptr;
    decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
    decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
    decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
    decltype(&::ibv_create_qp) create_qp = nullptr;
    decltype(&::ibv_modify_qp) modify_qp = nullptr;
    decltype(&::ibv_destroy_qp) destroy_qp = nullptr;
    decltype(&::ibv_get_async_event) get_async_event = nullptr;
    decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
    // Null in rdma-core before 28.
    ibv_mr* (*reg_mr_iova2)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned) = nullptr;
    // Null in rdma-core before 32.
    ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, std::size_t, std::uint32_t,
                               std::size_t) = nullptr;
};

// The host's library, loaded once. Throws Failure (kTransport): it is not there, or too old; says what to
// install.
const VerbsLibrary& verbs_library();

// What ibv_query_port gives, also where the library's own function knows only the older, shorter record.
int query_verbs_port(const VerbsLibrary& library, ibv_context* context, std::uint8_t port,
                     ibv_port_attr& attributes);

}  // namespace genie
