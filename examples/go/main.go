// Create a topic, read it back, watch it change, and hold a key, using code that buf generates from the contracts.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	brokerv1 "example.com/topics/gen/raftlog/wire/broker/v1"
	commonv1 "example.com/topics/gen/raftlog/wire/common/v1"
	controllerv1 "example.com/topics/gen/raftlog/wire/controller/v1"
)

// create returns once every unfenced broker shows the topic.
func create(ctx context.Context, broker brokerv1.BrokerClient, name string) (*commonv1.MetadataToken, error) {
	topic := &controllerv1.CreatableTopic{Name: name, NumPartitions: 3, ReplicationFactor: -1}
	written, err := broker.Write(ctx, &controllerv1.ControllerRequest{
		Acks: commonv1.Acks_ACKS_VISIBLE,
		Body: &controllerv1.ControllerRequest_CreateTopics{
			CreateTopics: &controllerv1.CreateTopicsRequest{Topics: []*controllerv1.CreatableTopic{topic}},
		},
	})
	if err != nil {
		return nil, err
	}
	// Each topic succeeds or fails independently; its error is in its result.
	for _, result := range written.GetCreateTopics().GetTopics() {
		if refused := result.GetError(); refused.GetErrorCode() != 0 {
			return nil, fmt.Errorf("%s (field %s)", refused.GetErrorMessage(), refused.GetField())
		}
	}
	return written.GetWrite().GetToken(), nil
}

// watch prints the changes after a token, until one changes the topic's configs.
func watch(ctx context.Context, broker brokerv1.BrokerClient, name string, since *commonv1.MetadataToken) error {
	stream, err := broker.Watch(ctx, &brokerv1.WatchRequest{
		Selectors: []string{"topics/" + name, "configs/topic/" + name},
		Since: &brokerv1.WatchToken{
			Generation: since.GetGeneration(), Epoch: since.GetEpoch(), Offset: since.GetOffset(),
		},
	})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		if refused := response.GetError(); refused.GetErrorCode() != 0 {
			return errors.New(refused.GetErrorMessage())
		}
		for _, change := range response.GetChanges() {
			fmt.Printf("changed: %s to %s\n", change.GetPath(), change.GetAfter())
			return nil
		}
	}
}

// explain reads the error of a whole call; NOT_CONTROLLER, for instance, names the leader.
func explain(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return fmt.Sprintf("%s %v", info.GetReason(), info.GetMetadata())
		}
	}
	return err.Error()
}

func alter(ctx context.Context, broker brokerv1.BrokerClient, name string) error {
	_, err := broker.Write(ctx, &controllerv1.ControllerRequest{
		Body: &controllerv1.ControllerRequest_IncrementalAlterConfigs{
			IncrementalAlterConfigs: &controllerv1.IncrementalAlterConfigsRequest{
				Resources: []*controllerv1.AlterConfigsResource{{
					ResourceType: 2,
					ResourceName: name,
					Configs:      []*controllerv1.AlterableConfig{{Name: "retention.ms", Value: "1000"}},
				}},
			},
		},
	})
	return err
}

// hold puts a key that exists as long as this program keeps its lease alive.
func hold(ctx context.Context, broker brokerv1.BrokerClient, key string) error {
	granted, err := broker.Write(ctx, &controllerv1.ControllerRequest{
		Body: &controllerv1.ControllerRequest_GrantLease{
			GrantLease: &controllerv1.GrantLeaseRequest{Name: "example in Go", TtlMs: 10_000},
		},
	})
	if err != nil {
		return err
	}
	lease, generation, absent := granted.GetGrantLease().GetLeaseId(), granted.GetWrite().GetToken().GetGeneration(), int64(-1)
	if _, err = broker.Write(ctx, &controllerv1.ControllerRequest{
		Body: &controllerv1.ControllerRequest_AlterKeyValues{
			AlterKeyValues: &controllerv1.AlterKeyValuesRequest{Alterations: []*controllerv1.KeyValueAlteration{
				{Key: key, Value: []byte("here"), LeaseId: lease, ExpectedOffset: &absent},
			}},
		},
	}); err != nil {
		return err
	}
	// A running program repeats this every 2.5 s, and counts the TTL from when it sends.
	kept, err := broker.Write(ctx, &controllerv1.ControllerRequest{
		Body: &controllerv1.ControllerRequest_KeepLeaseAlive{
			KeepLeaseAlive: &controllerv1.KeepLeaseAliveRequest{LeaseId: lease, Generation: &generation},
		},
	})
	if err != nil {
		return err
	}
	fmt.Printf("held: %s for %d ms\n", key, kept.GetKeepLeaseAlive().GetTtlMs())
	_, err = broker.Write(ctx, &controllerv1.ControllerRequest{
		Body: &controllerv1.ControllerRequest_RevokeLease{
			RevokeLease: &controllerv1.RevokeLeaseRequest{LeaseId: lease, Generation: &generation},
		},
	})
	return err
}

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	broker := brokerv1.NewBrokerClient(connection)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	created, err := create(ctx, broker, "from-go")
	if err != nil {
		log.Fatal(explain(err))
	}
	fmt.Printf("created: from-go at offset %d\n", created.GetOffset())

	described, err := broker.Metadata(ctx, &brokerv1.MetadataRequest{Topics: []string{"from-go"}})
	if err != nil {
		log.Fatal(explain(err))
	}
	for _, topic := range described.GetTopics() {
		fmt.Printf("read: %s has %d partitions\n", topic.GetName(), len(topic.GetPartitions()))
	}

	if _, err := create(ctx, broker, "from-go"); err != nil {
		fmt.Printf("refused: %v\n", err)
	}

	if err := alter(ctx, broker, "from-go"); err != nil {
		log.Fatal(explain(err))
	}
	if err := watch(ctx, broker, "from-go", created); err != nil {
		log.Fatal(explain(err))
	}

	if err := hold(ctx, broker, "live/from-go"); err != nil {
		log.Fatal(explain(err))
	}

	// At a controller: one that does not lead names the leader.
	for _, address := range os.Args[2:] {
		other, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			log.Fatal(err)
		}
		_, err = controllerv1.NewControllerClient(other).DescribeBrokers(ctx, &controllerv1.DescribeBrokersRequest{})
		if err != nil {
			fmt.Printf("controller: %s\n", explain(err))
		}
		other.Close()
	}
}
