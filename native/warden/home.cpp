#include "home.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "failure.h"

namespace genie::warden {
namespace {

sockaddr_un socket_address() {
    // Relative to the folder entered before: a path of any length does.
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, "socket");
    return address;
}

Descriptor unix_socket() {
    Descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made.valid()) fail_errno("socket");
    return made;
}

std::string absolute(const std::string& path) {
    if (path.empty()) throw Failure("--dir is empty");
    if (path.front() == '/') return path;
    char here[4096];
    if (::getcwd(here, sizeof here) == nullptr) fail_errno("getcwd");
    return std::string(here) + "/" + path;
}

}  // namespace

void write_all(int file, std::string_view text, const std::string& what) {
    while (!text.empty()) {
        const ssize_t count = ::write(file, text.data(), text.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail_errno(what);
        text.remove_prefix(static_cast<std::size_t>(count));
    }
}

std::string read_file(int folder, const char* name, std::size_t most) {
    const Descriptor file(::openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid()) {
        if (errno == ENOENT) return {};
        fail_errno(std::string("open ") + name);
    }
    std::string text;
    std::array<char, 65536> chunk;
    while (true) {
        const ssize_t count = ::read(file.get(), chunk.data(), chunk.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail_errno(std::string("read ") + name);
        if (count == 0) return text;
        text.append(chunk.data(), static_cast<std::size_t>(count));
        if (text.size() > most) throw Failure(std::string(name) + " is longer than a warden's");
    }
}

Home::Home(const std::string& path) : path_(absolute(path)) {
    folder_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!folder_.valid()) fail_errno(path_);
    struct stat found {};
    if (::fstat(folder_.get(), &found) != 0) fail_errno(path_);
    if (found.st_uid != ::geteuid())
        throw Failure(path_ + " belongs to user " + std::to_string(found.st_uid) + ", not to user " +
                      std::to_string(::geteuid()));
}

Home Home::make(const std::string& path) {
    const std::string whole = absolute(path);
    std::string made;
    for (std::size_t end = whole.find('/', 1);; end = whole.find('/', end + 1)) {
        const std::string part = whole.substr(0, end);
        if (::mkdir(part.c_str(), 0700) == 0) {
            if (made.empty()) made = part;
        } else if (errno != EEXIST) {
            fail_errno("make " + part);
        }
        if (end == std::string::npos) break;
    }
    Home home(whole);
    home.made_ = made;
    if (::fchmod(home.folder(), 0700) != 0) fail_errno("chmod " + whole);
    return home;
}

void Home::undo_make() {
    if (made_alive_) remove("alive");
    if (made_.empty()) return;
    std::string part = path_;
    while (part.size() >= made_.size() && ::rmdir(part.c_str()) == 0) part.resize(part.rfind('/'));
}

bool Home::take() {
    alive_ = Descriptor(::openat(folder(), "alive", O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!alive_.valid() && errno == ENOENT) {
        alive_ = Descriptor(::openat(folder(), "alive", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
        made_alive_ = alive_.valid();
    }
    if (!alive_.valid()) fail_errno("open alive");
    if (::flock(alive_.get(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) fail_errno("flock alive");
    made_alive_ = false;
    return false;
}

void Home::release() const { ::flock(alive_.get(), LOCK_UN); }

void Home::store(const char* name, std::string_view text) const {
    const std::string fresh = std::string(name) + ".new";
    const Descriptor file(
        ::openat(folder(), fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) fail_errno("create " + fresh);
    try {
        write_all(file.get(), text, "write " + fresh);
        if (::fsync(file.get()) != 0) fail_errno("fsync " + fresh);
        if (::renameat(folder(), fresh.c_str(), folder(), name) != 0) fail_errno("rename " + fresh);
    } catch (const Failure&) {
        remove(fresh.c_str());
        throw;
    }
    if (::fsync(folder()) != 0) fail_errno("fsync " + path_);
}

void Home::remove(const char* name) const { ::unlinkat(folder(), name, 0); }

Descriptor Home::listen() const {
    remove("socket");
    Descriptor made = unix_socket();
    const sockaddr_un address = socket_address();
    if (::fchdir(folder()) != 0) fail_errno("enter " + path_);
    if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(made.get(), 16) != 0)
        fail_errno("listen on " + path_ + "/socket");
    return made;
}

Descriptor Home::connect() const {
    Descriptor made = unix_socket();
    const sockaddr_un address = socket_address();
    if (::fchdir(folder()) != 0) fail_errno("enter " + path_);
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return made;
    if (errno != ENOENT && errno != ECONNREFUSED) fail_errno("connect to " + path_ + "/socket");
    return Descriptor();
}

}  // namespace genie::warden
