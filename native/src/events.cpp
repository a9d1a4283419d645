#include "events.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "failure.h"

namespace genie {

EventFile::EventFile(const std::string& path, std::uint32_t rank, std::uint32_t world, std::uint64_t capacity)
    : capacity_(capacity), mapped_bytes_(sizeof(EventHeader) + capacity * sizeof(Event)) {
    int fd = -1;
    if (!path.empty()) {
        fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0) fail_errno(Code::kInternal, "cannot create event file " + path);
        // Space is reserved now: a full disk is an error here, not a SIGBUS in the middle of a run.
        const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(mapped_bytes_));
        if (error != 0) {
            ::close(fd);
            ::unlink(path.c_str());  // an event file is whole or not there
            throw Failure(Code::kOutOfMemory, with_reason("cannot reserve " + std::to_string(mapped_bytes_) +
                                                              " bytes for event file " + path,
                                                          error));
        }
    }
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void* memory = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, flags, fd, 0);
    const int error = errno;
    if (fd >= 0) ::close(fd);
    if (memory == MAP_FAILED)
        throw Failure(Code::kOutOfMemory, with_reason("cannot map event file " + path, error));
    header_ = new (memory) EventHeader{};
    records_ = reinterpret_cast<Event*>(static_cast<std::byte*>(memory) + sizeof(EventHeader));
    std::memcpy(header_->magic, "GNIEEVT1", 8);
    header_->version = 1;
    header_->record_bytes = sizeof(Event);
    header_->rank = rank;
    header_->world = world;
    header_->capacity = capacity;
}

EventFile::~EventFile() { ::munmap(header_, mapped_bytes_); }

}  // namespace genie
