// libfabric, loaded from the host when a run asks for it: the engine builds with its headers alone and runs
// without it. Only what is not inline in those headers is looked up; all else goes through the tables of the
// objects.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <cstdint>
#include <memory>
#include <string>

#include "failure.h"

namespace genie {

struct OfiLibrary {
    decltype(&::fi_getinfo) getinfo;
    decltype(&::fi_freeinfo) freeinfo;
    decltype(&::fi_dupinfo) dupinfo;
    decltype(&::fi_fabric) fabric;
    decltype(&::fi_strerror) strerror;
    decltype(&::fi_version) version;

    // What the library shall know when it is loaded: how many ranks a job has. Nothing changes once it is.
    static void expect_ranks(std::uint32_t ranks);
    // Loaded by the first who asks. Throws Failure (kConnect): it is missing or too old, and what to install.
    static const OfiLibrary& get();

    // "1.17"
    std::string version_text() const;
    // "what: reason"; `error` as the library returned it, negative or not.
    std::string reason(const std::string& what, std::int64_t error) const;
};

// The interface that is asked of the library.
constexpr std::uint32_t kOfiVersion = FI_VERSION(1, 11);

struct FreeInfo {
    void operator()(fi_info* info) const { OfiLibrary::get().freeinfo(info); }
};
using OfiInfo = std::unique_ptr<fi_info, FreeInfo>;

struct CloseFid {
    template <class Object>
    void operator()(Object* object) const {
        ::fi_close(&object->fid);
    }
};
// Any object of libfabric; closes itself.
template <class Object>
using OfiObject = std::unique_ptr<Object, CloseFid>;

}  // namespace genie
