/* grpc.reflection.v1 and v1alpha: what is served, told from the descriptors that are built into the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/inside.h"
#include "proto/descriptors.h"
#include "proto/grpc/reflection/v1/reflection.pb-c.h"

#define SERVICES_MAX 16 /* more than the table of methods has */

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

static void answer_error(struct rpc_call *call, reflection_response *response, enum rpc_code code, char *why)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)code;
    error.error_message = why;
    response->message_response_case = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response->error_response = &error;
    if (control_send(call, &response->base)) rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "read the answers first");
}

static void not_found(struct rpc_call *call, reflection_response *response)
{
    static char why[] = "there is no such file, symbol or type";
    answer_error(call, response, RPC_NOT_FOUND, why);
}

static void answer_file(struct rpc_call *call, reflection_response *response, const struct descriptors *descriptors,
                        int file)
{
    if (file < 0) {
        not_found(call, response);
        return;
    }
    ProtobufCBinaryData *files = calloc(descriptors_count(descriptors), sizeof *files);
    Grpc__Reflection__V1__FileDescriptorResponse found = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    found.file_descriptor_proto = files;
    if (files) found.n_file_descriptor_proto = descriptors_closure(descriptors, file, files);
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response->file_descriptor_response = &found;
    if (!files || control_send(call, &response->base))
        rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "read the answers first");
    free(files);
}

/* No type here has extensions, which proto3 does not know. */
static void answer_extension_numbers(struct rpc_call *call, reflection_response *response, char *type,
                                     const struct descriptors *descriptors)
{
    if (descriptors_find_message(descriptors, type) < 0) {
        not_found(call, response);
        return;
    }
    Grpc__Reflection__V1__ExtensionNumberResponse numbers = GRPC__REFLECTION__V1__EXTENSION_NUMBER_RESPONSE__INIT;
    numbers.base_type_name = type;
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ALL_EXTENSION_NUMBERS_RESPONSE;
    response->all_extension_numbers_response = &numbers;
    if (control_send(call, &response->base)) rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "read the answers first");
}

/* The table of methods has those of one service side by side. */
static size_t list_services(char names[SERVICES_MAX][64])
{
    size_t count = 0;
    for (const struct rpc_method *method = coordinator_methods; method->path && count < SERVICES_MAX; method++) {
        const char *begin = method->path + 1;
        snprintf(names[count], 64, "%.*s", (int)(strrchr(begin, '/') - begin), begin);
        if (count == 0 || strcmp(names[count], names[count - 1]) != 0) count++;
    }
    return count;
}

static void answer_services(struct rpc_call *call, reflection_response *response)
{
    char names[SERVICES_MAX][64];
    Grpc__Reflection__V1__ServiceResponse services[SERVICES_MAX], *list[SERVICES_MAX];
    Grpc__Reflection__V1__ListServiceResponse all = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    all.n_service = list_services(names);
    all.service = list;
    for (size_t i = 0; i < all.n_service; i++) {
        grpc__reflection__v1__service_response__init(&services[i]);
        services[i].name = names[i];
        list[i] = &services[i];
    }
    response->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response->list_services_response = &all;
    if (control_send(call, &response->base)) rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "read the answers first");
}

void reflection_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    static char unknown[] = "a request of no known kind";
    const struct descriptors *descriptors = ((const struct coordinator *)context)->descriptors;
    reflection_request *request =
        message_unpack(&grpc__reflection__v1__server_reflection_request__descriptor, length, bytes, REQUEST_BEYOND);
    reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    if (!request) {
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "not a ServerReflectionRequest");
    } else {
        response.valid_host = request->host;
        response.original_request = request;
    }
    switch (request ? request->message_request_case : 0) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        answer_file(call, &response, descriptors, descriptors_find_file(descriptors, request->file_by_filename));
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        answer_file(call, &response, descriptors,
                    descriptors_find_symbol(descriptors, request->file_containing_symbol));
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
        not_found(call, &response);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_extension_numbers(call, &response, request->all_extension_numbers_of_type, descriptors);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(call, &response);
        break;
    default:
        if (request) answer_error(call, &response, RPC_INVALID_ARGUMENT, unknown);
    }
    if (request) grpc__reflection__v1__server_reflection_request__free_unpacked(request, NULL);
    connection_wake(call);
}

void reflection_end(struct rpc_call *call, void *context)
{
    (void)context;
    rpc_call_finish(call, RPC_OK, NULL);
    connection_wake(call);
}
