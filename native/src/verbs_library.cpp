#include "verbs_library.h"

#include <dlfcn.h>

#include <string>

#include "failure.h"

namespace genie {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

template <class Function>
void find(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
    if (function == nullptr) {
        throw Failure(Code::kTransport, std::string(kLibrary) + " on this host has no " + name +
                                            ": expected rdma-core 17 or newer, update it");
    }
}

VerbsLibrary load() {
    void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        // One thread at a time is here, and the text is copied at once.
        const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe)
        throw Failure(Code::kTransport,
                      "transport verbs needs " + std::string(kLibrary) +
                          " on this host: " + (why == nullptr ? "not found" : why) +
                          "; install it (Debian: apt-get install libibverbs1 ibverbs-providers; "
                          "RHEL: dnf install libibverbs)");
    }
    VerbsLibrary table;
    find(library, "ibv_get_device_list", table.get_device_list);
    find(library, "ibv_free_device_list", table.free_device_list);
    find(library, "ibv_get_device_name", table.get_device_name);
    find(library, "ibv_open_device", table.open_device);
    find(library, "ibv_close_device", table.close_device);
    find(library, "ibv_query_device", table.query_device);
    find(library, "ibv_query_port", table.query_port);
    find(library, "ibv_query_gid", table.query_gid);
    find(library, "ibv_alloc_pd", table.alloc_pd);
    find(library, "ibv_dealloc_pd", table.dealloc_pd);
    find(library, "ibv_reg_mr", table.reg_mr);
    find(library, "ibv_dereg_mr", table.dereg_mr);
    find(library, "ibv_create_comp_channel", table.create_comp_channel);
    find(library, "ibv_destroy_comp_channel", table.destroy_comp_channel);
    find(library, "ibv_create_cq", table.create_cq);
    find(library, "ibv_destroy_cq", table.destroy_cq);
    find(library, "ibv_get_cq_event", table.get_cq_event);
    find(library, "ibv_ack_cq_events", table.ack_cq_events);
    find(library, "ibv_create_qp", table.create_qp);
    find(library, "ibv_modify_qp", table.modify_qp);
    find(library, "ibv_destroy_qp", table.destroy_qp);
    find(library, "ibv_get_async_event", table.get_async_event);
    find(library, "ibv_ack_async_event", table.ack_async_event);
    table.reg_mr_iova2 = reinterpret_cast<decltype(table.reg_mr_iova2)>(::dlsym(library, "ibv_reg_mr_iova2"));
    table.query_gid_table =
        reinterpret_cast<decltype(table.query_gid_table)>(::dlsym(library, "_ibv_query_gid_table"));
    return table;
}

}  // namespace

const VerbsLibrary& verbs_library() {
    static const VerbsLibrary kTable = load();  // never unloaded: its providers leave threads and handlers
    return kTable;
}

int query_verbs_port(const VerbsLibrary& library, ibv_context* context, std::uint8_t port,
                     ibv_port_attr& attributes) {
    attributes = {};
    verbs_context* const extended = verbs_get_ctx_op(context, query_port);
    if (extended != nullptr) return extended->query_port(context, port, &attributes, sizeof attributes);
    return library.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
}

}  // namespace genie
